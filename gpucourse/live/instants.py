"""Memory at each instant of a step, as stacked bars: where the peak is, and what it is made of."""

from dataclasses import dataclass

from gpucourse.catalog.units import GiB, MiB
from gpucourse.evidence import INSTANTS, Memory
from gpucourse.live.panel import page, png
from gpucourse.live.picture import INK, spread

# Bottom to top, lighter upwards, so that the order holds in grey.
SHADES = (("weights", "#16325c"), ("optimizer", "#3d7ab3"), ("gradients", "#d9822b"), ("activations", "#f0c27a"),
          ("temporaries", "#f8ead0"))


@dataclass(frozen=True)
class InstantsChart:
    """Shown as a picture in a notebook, and as a line of text elsewhere."""

    memory: Memory
    title: str

    def __str__(self) -> str:
        return f"{self.title} ({self.memory.kind}): peak {self.memory.peak / GiB:.3f} GiB at {self.memory.peak_at}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return drawn(self.memory, self.title)


def instants(memory: Memory, title: str) -> InstantsChart:
    """Draw a ledger's `memory()`, a dry run or a measurement; the title states what the picture shows."""
    return InstantsChart(memory, title)


def drawn(memory: Memory, title: str) -> bytes:
    unit, name = (GiB, "GiB") if memory.peak >= GiB else (MiB, "MiB")
    says = f"{name} alive at the highest moment of each instant, {memory.kind}"
    figure, (axes,) = page(title, says + (f", {memory.device}" if memory.device else ""), (0.06, 0.12, 0.72, 0.72),
                           height=3.2, grid="y")
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
    axes.margins(x=0.02)
    ends = spread([value / (most * 1.1) for value, _, _ in labels], 0.085, 0.02, 0.98)
    for y, (_, category, colour) in zip(ends, labels, strict=True):
        axes.plot(1.015, y, "s", color=colour, markersize=7, markeredgecolor=INK, markeredgewidth=0.4,
                  transform=axes.transAxes, clip_on=False)
        axes.text(1.03, y, category, transform=axes.transAxes, va="center", fontsize=8.5, color=INK)
    return png(figure)
