"""Time against memory: one numbered point for each way of taking a step, with the spread of its time."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpucourse.catalog.units import MiB
from gpucourse.live.panel import SHADES, panel, png
from gpucourse.live.picture import INK


@dataclass(frozen=True)
class Way:
    """peak: bytes. time: as a multiple of the first way's, the median; low, high: quartiles."""

    name: str
    peak: float
    time: float
    low: float
    high: float


@dataclass(frozen=True)
class Tradeoff:
    """Shown as a picture in a notebook, and as a line of text elsewhere."""

    ways: Sequence[Way]
    title: str
    device: str

    def __str__(self) -> str:
        points = ", ".join(f"{way.name} {way.peak / MiB:.1f} MiB at {way.time:.2f} ×" for way in self.ways)
        return f"{self.title} (measured on {self.device}): {points}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        says = f"× the plain step, in alternation, with the middle half of the rounds; measured on {self.device}"
        figure, axes = panel(self.title, says, right=0.72)
        for number, way in enumerate(self.ways, start=1):
            x = way.peak / MiB
            axes.plot((x, x), (way.low, way.high), color=SHADES[2], linewidth=4, solid_capstyle="butt")
            axes.plot(x, way.time, "o", color=SHADES[0], markersize=12)
            axes.text(x, way.time, f"{number}", ha="center", va="center_baseline", fontsize=8.5, color="white")
            axes.text(1.03, 1.02 - 0.13 * number, f"{number}  {way.name}", transform=axes.transAxes, fontsize=8.5,
                      color=INK)
        axes.set_xlabel("peak allocated, MiB", fontsize=8.5, color=INK)
        axes.set_ylabel("step time, × plain", fontsize=8.5, color=INK)
        axes.margins(x=0.07, y=0.18)
        return png(figure)
