"""The chart's history: what was seen, in a number of points that stays bounded however long the run is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

LIMIT = 160  # points a curve; more could not be told apart at the chart's width

Point = TypeVar("Point")


@dataclass(frozen=True)
class MemoryPoint:
    """Bytes at a time (seconds since the start). parts: weights, optimizer, gradients. lines: other totals by name."""

    time: float
    parts: tuple[int, int, int]
    total: int
    lines: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class StepPoint:
    """One training step, or several in a row: begin and end in seconds since the start."""

    begin: float
    end: float
    samples: int
    steps: int = 1

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / max(self.end - self.begin, 1e-9)


class Bounded(Generic[Point]):
    """Keeps at most `limit` points: when they are full, neighbours merge, and from then on twice as many make one."""

    def __init__(self, merge: Callable[[Point, Point], Point], limit: int = LIMIT):
        self._merge, self._limit = merge, limit
        self._points: list[Point] = []
        self._open: Point | None = None
        self._gathered, self._stride = 0, 1

    def add(self, point: Point) -> None:
        self._open = point if self._open is None else self._merge(self._open, point)
        self._gathered += 1
        if self._gathered < self._stride:
            return
        self._points = [*self._points, self._open]  # a new list: a thread that draws keeps the one that it has
        self._open, self._gathered = None, 0
        if len(self._points) >= self._limit:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [self._merge(a, b) for a, b in pairs]
            self._stride *= 2

    def points(self) -> list[Point]:
        """The points so far, oldest first, the unfinished one last."""
        points, unfinished = self._points, self._open
        return points if unfinished is None else [*points, unfinished]


def higher(a: MemoryPoint, b: MemoryPoint) -> MemoryPoint:
    """Of two moments the one with more memory: merging never loses a peak."""
    return a if a.total >= b.total else b


def together(a: StepPoint, b: StepPoint) -> StepPoint:
    """Two neighbouring stretches of steps as one."""
    return StepPoint(a.begin, b.end, a.samples + b.samples, a.steps + b.steps)


def memory_history() -> Bounded[MemoryPoint]:
    return Bounded(higher)


def step_history() -> Bounded[StepPoint]:
    return Bounded(together)
