"""Live bytes over the operations of a step, one line for each way of taking it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.catalog.units import MiB
from gpucourse.live.panel import DASHES, LINES, panel, png
from gpucourse.live.picture import INK, spread


@dataclass(frozen=True)
class OverAStep:
    """Shown as a picture in a notebook, and as a line of text elsewhere.

    curves: {name: bytes alive after each operation}. kind: of evidence.
    """

    curves: Mapping[str, Sequence[int]]
    title: str
    kind: str

    def __str__(self) -> str:
        peaks = ", ".join(f"{name} {max(points) / MiB:.1f}" for name, points in self.curves.items())
        return f"{self.title} ({self.kind}): peaks in MiB: {peaks}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        figure, axes = panel(self.title, f"MiB alive after each operation, {self.kind}", right=0.7)
        most = max(max(points) for points in self.curves.values()) / MiB
        tops = []
        for (name, points), shade, dash in zip(self.curves.items(), LINES, DASHES, strict=False):
            axes.plot([size / MiB for size in points], color=shade, linewidth=1.5, linestyle=dash)
            top = max(range(len(points)), key=points.__getitem__)
            axes.plot(top, points[top] / MiB, "o", color=shade, markersize=4)
            tops.append((points[top] / MiB, f"{name}: {points[top] / MiB:.1f}", shade, dash))
        axes.set_ylim(0, most * 1.08)
        axes.margins(x=0.01)
        axes.set_xlabel("operations of the step", fontsize=8.5, color=INK)
        places = spread([top / (most * 1.08) for top, *_ in tops], 0.09, 0.02, 0.97)
        for y, (_, text, shade, dash) in zip(places, tops, strict=True):
            axes.plot((1.01, 1.04), (y, y), color=shade, linewidth=2, linestyle=dash, transform=axes.transAxes,
                      clip_on=False)
            axes.text(1.05, y, text, transform=axes.transAxes, va="center", fontsize=8.5, color=INK)
        return png(figure)
