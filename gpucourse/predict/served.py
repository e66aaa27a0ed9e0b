"""What came of a simulated run: the times of each request, their percentiles, and the server turn by turn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.errors import BadInput
from gpucourse.evidence import Readings, column
from gpucourse.predict.requests import Request


@dataclass(frozen=True)
class Served:
    """first, end: when its first and its last token existed, s. preempted: how often it lost its blocks."""

    request: Request
    first: float
    end: float
    preempted: int

    @property
    def wait(self) -> float:
        """Seconds until the first token."""
        return self.first - self.request.arrival

    @property
    def latency(self) -> float:
        """Seconds until the last token."""
        return self.end - self.request.arrival

    @property
    def pace(self) -> float:
        """Seconds a token after the first; 0 for an answer of one token."""
        return (self.end - self.first) / max(1, self.request.answer - 1)


@dataclass(frozen=True)
class Turn:
    """One turn of the server: when, how many ran and waited, tokens prefilled, requests pre-empted, blocks in use."""

    begin: float
    end: float
    running: int
    waiting: int
    prefilled: int
    preempted: int
    blocks: int


@dataclass(frozen=True)
class Run:
    served: tuple[Served, ...]
    turns: tuple[Turn, ...]

    @property
    def seconds(self) -> float:
        """When the last request was done."""
        return max(one.end for one in self.served)

    @property
    def tokens_per_second(self) -> float:
        """Of answers, over the whole run."""
        return sum(one.request.answer for one in self.served) / self.seconds

    @property
    def preemptions(self) -> int:
        return sum(turn.preempted for turn in self.turns)

    @property
    def computed_again(self) -> int:
        """Tokens prefilled beyond each prompt once."""
        return sum(turn.prefilled for turn in self.turns) - sum(one.request.prompt for one in self.served)

    def at(self, what: str, percent: float) -> float:
        """A percentile of `wait`, `latency` or `pace` over the requests, in seconds."""
        return percentile([getattr(one, what) for one in self.served], percent)

    def readings(self) -> Readings:
        values = {f"{what} p{p}": 1e3 * self.at(what, p) for what in ("wait", "latency", "pace") for p in (50, 95, 99)}
        return column("simulated", values, "ms")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed: one that occurred, by nearest rank."""
    if not values or not 0 < percent <= 100:
        raise BadInput(f"percentile {percent} of {len(values)} values; it takes some values and 0 < percent ≤ 100")
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def between(points: Mapping[int, float]):
    """A function through measured {count: seconds}: straight between two points, and on beyond the last two.

    Below the first point it stays level: less work than that does not take less time. It never falls.
    """
    if not points:
        raise BadInput("between was given no points; it takes at least one {count: seconds}")
    counts, highest = sorted(points), []
    for count in counts:  # noise may let a larger count look faster; it is then as slow as what came before
        highest.append(max([points[count], *highest[-1:]]))

    def seconds(count: int) -> float:
        if count <= counts[0] or len(counts) == 1:
            return highest[0]
        right = next((i for i, at in enumerate(counts) if at >= count), len(counts) - 1)
        left = right - 1
        share = (count - counts[left]) / (counts[right] - counts[left])
        return highest[left] + share * (highest[right] - highest[left])

    return seconds
