"""Requests to a server: drawn at random, or written down by hand."""

import random
from dataclasses import dataclass

from gpucourse.errors import BadInput, positive, positive_int


@dataclass(frozen=True)
class Request:
    """arrival: s. prompt, answer: tokens, at least one of each."""

    arrival: float
    prompt: int
    answer: int

    def __post_init__(self):
        positive_int("prompt", self.prompt)
        positive_int("answer", self.answer)
        if not 0 <= self.arrival < float("inf"):
            raise BadInput(f"arrival is {self.arrival!r}; it must be a number of seconds, 0 or more")


def drawn(count: int, rate: float, prompt: tuple[int, int], answer: tuple[int, int],
          seed: int = 0) -> tuple[Request, ...]:
    """`count` requests that arrive independently at `rate` a second, their lengths uniform between two ends."""
    positive("rate", rate)
    draw, now, requests = random.Random(seed), 0.0, []
    for _ in range(positive_int("requests", count)):
        requests.append(Request(now, draw.randint(*prompt), draw.randint(*answer)))
        now += draw.expovariate(rate)
    return tuple(requests)
