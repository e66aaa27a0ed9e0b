"""What each rank does and when, on one clock: marked in the rank, drawn by gpucourse.live.timeline."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

MOST = 20_000  # spans that a rank keeps


@dataclass(frozen=True)
class Span:
    """Seconds since the launch began. row: `compute`, or `link` for what a paced link carried."""

    name: str
    begin: float
    end: float
    row: str = "compute"


@contextmanager
def span(name: str) -> Iterator[None]:
    """Mark what a rank does in this block; `ranks.run(…).timeline` has it."""
    begin = time.monotonic()  # one clock for all processes of a machine
    try:
        yield
    finally:
        mark(name, begin, time.monotonic())


def mark(name: str, begin: float, end: float, row: str = "compute") -> None:
    """Keep a span, in seconds on the machine's monotonic clock."""
    if len(_kept()) < MOST:
        _kept().append(Span(name, begin, end, row))


def spans(since: float) -> tuple[Span, ...]:
    """The spans that this process has kept, in the order in which they began, in seconds since `since`."""
    kept = [Span(s.name, s.begin - since, s.end - since, s.row) for s in _kept()]
    return tuple(sorted(kept, key=lambda s: s.begin))


@cache
def _kept() -> list[Span]:
    """One list a process: a rank serves one launch."""
    return []
