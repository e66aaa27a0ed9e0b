"""What the chart shows, before it is drawn: the live SVG and the final PNG draw the same picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gpucourse.catalog.units import GiB, MiB
from gpucourse.evidence import Figure
from gpucourse.live.series import MemoryPoint, StepPoint

# Bottom to top. Each is lighter than the one below, so the order holds in grey too; blue and orange stay apart for
# colour-blind readers.
LAYERS = (("weights", "#16325c"), ("optimizer", "#3d7ab3"), ("gradients", "#d9822b"),
          ("activations and other", "#f6dfae"))
INK, FAINT, GRID, LIMIT_INK, RATE, EACH = "#222222", "#666666", "#dddddd", "#b00020", "#16325c", "#9bbbd9"
PHASE_SHADE = {"forward": 0.03, "backward": 0.10, "step": 0.24}  # opacity of black
LEAST_STEP = 9  # pixels: narrower steps would make bands that cannot be seen
PHASES_SAY = "shaded from light to dark: forward, backward, step"
MEDIAN_OVER = 9  # points
RUNNING = "running"


@dataclass(frozen=True)
class Picture:
    """seconds: the run so far. budget: bytes or None. phases: (seconds, name) as each begins.

    ending: `running`, or how the loop has ended; then there are its figures.
    """

    title: str
    ending: str
    seconds: float
    memory: Sequence[MemoryPoint]
    steps: Sequence[StepPoint]
    phases: Sequence[tuple[float, str]]
    memory_is: str
    device: str
    budget: float | None = None
    figures: tuple[Figure, ...] = ()

    @property
    def state(self) -> str:
        return f"{steps_text(sum(point.steps for point in self.steps))}, {self.ending}"

    @property
    def unit(self) -> tuple[int, str]:
        """What the memory axis counts in."""
        return unit_of(self.most)

    @cached_property
    def most(self) -> int:
        """The highest number of bytes that the memory plot must show."""
        shown = [max(point.total, sum(point.parts)) for point in self.memory]
        lines = [size for point in self.memory for _, size in point.lines]
        return max([*shown, *lines, self.budget or 0, MiB])

    @cached_property
    def fastest(self) -> float:
        """The highest rate that the throughput plot must show."""
        return max((point.rate for point in self.steps), default=1.0)


def layers(points: Sequence[MemoryPoint]) -> list[list[int]]:
    """The upper edge of each layer at each point, bottom layer first. What is not told apart is the last layer."""
    edges = []
    for point in points:
        weights, optimizer, gradients = point.parts
        known = weights + optimizer + gradients
        edges.append([weights, weights + optimizer, known, max(known, point.total)])
    return [list(edge) for edge in zip(*edges, strict=True)]


def running_median(rates: Sequence[float]) -> list[float]:
    """The median of each value and those just before it."""
    windows = (sorted(rates[max(0, i - MEDIAN_OVER):i]) for i in range(1, len(rates) + 1))
    return [(window[(len(window) - 1) // 2] + window[len(window) // 2]) / 2 for window in windows]


def bands(picture: Picture, width: float) -> list[tuple[float, float, str]]:
    """(begin, end, phase) in seconds, or none where a step is too narrow to be seen on `width` pixels."""
    steps = sum(point.steps for point in picture.steps)
    if not steps or width / steps < LEAST_STEP:
        return []
    ends = [begin for begin, _ in picture.phases[1:]] + [picture.seconds]
    spans = zip(picture.phases, ends, strict=True)
    return [(begin, end, phase) for (begin, phase), end in spans if phase and end > begin >= 0]


def ticks(most: float, about: int = 4) -> list[float]:
    """Round values from 0 up to `most`."""
    raw = most / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= raw * (1 - 1e-9))
    return [step * i for i in range(math.floor(most / step + 1e-9) + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart and within low … high where they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    floor = low
    for i in order:
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def unit_of(size: int) -> tuple[int, str]:
    """(bytes, name) of the unit for an axis that ends at `size` bytes."""
    return (GiB, "GiB") if size >= GiB else (MiB, "MiB")


def steps_text(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def samples_text(rate: float, spread: float | None = None) -> str:
    """Three figures or more: `41.2 ± 0.8`."""
    digits = 0 if rate >= 100 else 1 if rate >= 10 else 2
    return f"{rate:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


def short(value: float) -> str:
    """Three figures, for labels."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
