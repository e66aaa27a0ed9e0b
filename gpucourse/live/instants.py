"""Memory at each instant of a step, as stacked bars: where the peak is, and what it is made of."""

import io
from dataclasses import dataclass

from gpucourse.catalog.units import GiB, MiB
from gpucourse.evidence import INSTANTS, Memory
from gpucourse.live.picture import FAINT, GRID, INK, spread

# Bottom to top, lighter upwards, so that the order holds in grey.
SHADES = (("weights", "#16325c"), ("optimizer", "#3d7ab3"), ("gradients", "#d9822b"), ("activations", "#f0c27a"),
          ("temporaries", "#f8ead0"))
DPI, SIZE = 100, (9.5, 3.2)


@dataclass(frozen=True)
class InstantsChart:
    """Shown as a picture in a notebook, and as a line of text elsewhere."""

    memory: Memory
    title: str

    def __str__(self) -> str:
        return f"{self.title} ({self.memory.kind}): peak {self.memory.peak / GiB:.3f} GiB at {self.memory.peak_at}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return png(self.memory, self.title)


def instants(memory: Memory, title: str) -> InstantsChart:
    """Draw a ledger's `memory()`, a dry run or a measurement; the title states what the picture shows."""
    return InstantsChart(memory, title)


def png(memory: Memory, title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(SIZE, DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.06, 0.12, 0.72, 0.72))
    unit, name = (GiB, "GiB") if memory.peak >= GiB else (MiB, "MiB")
    shown = [instant for instant in INSTANTS if instant in memory.at]
    lower, labels = [0.0] * len(shown), []
    for category, colour in SHADES:
        heights = [memory.at[instant].get(category, 0) / unit for instant in shown]
        axes.bar(shown, heights, bottom=lower, color=colour, width=0.66, edgecolor=INK, linewidth=0.4)
        labels.append((lower[-1] + heights[-1] / 2, category, colour))
        lower = [low + height for low, height in zip(lower, heights, strict=True)]
    most = max(lower)
    for place, total in enumerate(lower):
        peak = shown[place] == memory.peak_at
        axes.text(place, total + most * 0.015, f"{total:,.4g}", ha="center", fontsize=8.5, color=INK,
                  fontweight="bold" if peak else "normal")
    axes.set_ylim(0, most * 1.1)
    _style(axes)
    figure.text(0.008, 0.93, title, fontsize=10.5, fontweight="bold", color=INK)
    figure.text(0.008, 0.862, f"{name} alive at the highest moment of each instant, {memory.kind}"
                + (f", {memory.device}" if memory.device else ""), fontsize=8, color=FAINT)
    ends = spread([value / (most * 1.1) for value, _, _ in labels], 0.085, 0.02, 0.98)
    for y, (_, category, colour) in zip(ends, labels, strict=True):
        axes.plot(1.015, y, "s", color=colour, markersize=7, markeredgecolor=INK, markeredgewidth=0.4,
                  transform=axes.transAxes, clip_on=False)
        axes.text(1.03, y, category, transform=axes.transAxes, va="center", fontsize=8.5, color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _style(axes) -> None:
    axes.tick_params(labelsize=8.5, colors=INK, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    for spine in axes.spines.values():
        spine.set_visible(False)
