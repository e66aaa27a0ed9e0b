"""What a pipeline's rank holds at each of its actions: its own, and the micro-batches that are in flight beside it."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from gpucourse.catalog.jobs import Job
from gpucourse.predict.schedules import schedule


class Situation(NamedTuple):
    """A forward or backward at a stage. began: a backward ran before. others: micro-batches in flight, by stage."""

    kind: str
    stage: int
    began: bool
    others: tuple[tuple[int, int], ...]


def situations(job: Job, rank: int) -> frozenset[Situation]:
    """Of each kind the one with most in flight; job.accumulate is the number of micro-batches."""
    layout = job.layout
    return _situations(layout.schedule, layout.pp, job.accumulate, layout.chunks, rank)


@cache
def _situations(name: str, ranks: int, micro_batches: int, chunks: int, rank: int) -> frozenset[Situation]:
    actions = schedule(name, ranks, micro_batches, chunks if chunks > 1 else 0).actions[rank]
    most: dict[tuple, Situation] = {}
    for at in _played(actions):
        before = most.get(at[:3])
        if before is None or in_flight(at) > in_flight(before):
            most[at[:3]] = at
    return frozenset(most.values())


def in_flight(at: Situation) -> int:
    return sum(count for _, count in at.others)


def _played(actions) -> Iterator[Situation]:
    """In order; a micro-batch is in flight from its forward to its whole backward, or to its weights' half."""
    flying: dict[int, int] = {}
    began = False
    for kind, stage, _ in actions:
        own = 0 if kind == "F" else 1
        others = {s: count - (own if s == stage else 0) for s, count in flying.items()}
        if kind != "W":
            yield Situation("F" if kind == "F" else "B", stage, began, tuple((s, c) for s, c in others.items() if c))
        flying[stage] = flying.get(stage, 0) + {"F": 1, "B": -1, "W": -1, "I": 0}[kind]
        began = began or kind in "BI"
