"""The roofline: what a machine can reach at each arithmetic intensity, and what operations reached."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucourse.live.panel import page, png
from gpucourse.live.picture import EACH, FAINT, INK, RATE, spread
from gpucourse.predict.compute import attainable, ridge

LEADER = "#a8a8a8"  # from a name to its point: darker than the grid, which it crosses


@dataclass(frozen=True)
class Roofline:
    """Shown as a picture in a notebook, and as a line of text elsewhere.

    points: {operation: (FLOPs a byte, FLOP/s)}. peak: FLOP/s. bandwidth: bytes/s. where: the kind of evidence, device.
    """

    title: str
    points: Mapping[str, tuple[float, float]]
    peak: float
    bandwidth: float
    where: str

    def __str__(self) -> str:
        return (f"{self.title}: {len(self.points)} operations under {flops_text(self.peak)} and "
                f"{self.bandwidth / 1e9:,.4g} GB/s, ridge at {ridge(self.peak, self.bandwidth):.3g} FLOPs a byte, "
                f"{self.where}")

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return drawn(self)


def roofline(title: str, points: Mapping[str, tuple[float, float]], peak: float, bandwidth: float,
             where: str) -> Roofline:
    """Draw operations under the roof of two ceilings; the title states what the picture shows."""
    return Roofline(title, points, peak, bandwidth, where)


def flops_text(rate: float) -> str:
    """FLOP/s with their unit."""
    return f"{rate / 1e12:,.4g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.4g} GFLOP/s"


def drawn(shown: Roofline) -> bytes:
    figure, (axes,) = page(shown.title, shown.where, (0.075, 0.14, 0.68, 0.67), height=3.6)
    turn = ridge(shown.peak, shown.bandwidth)
    intensities, rates = zip(*shown.points.values(), strict=True)
    left, right = min(*intensities, turn) / 3, max(*intensities, turn) * 4
    bottom, top = min(rates) / 5, shown.peak * 4
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    roof = [(x, attainable(x, shown.peak, shown.bandwidth)) for x in (left, turn, right)]
    axes.plot(*zip(*roof, strict=True), color=INK, linewidth=2)
    axes.plot([turn, turn], [bottom, shown.peak], color=FAINT, linewidth=0.9, linestyle=":")
    axes.text(turn * 1.06, bottom * 1.25, f"ridge: {turn:.3g} FLOPs a byte", fontsize=8, color=FAINT)
    axes.text(turn, shown.peak * 1.25, flops_text(shown.peak), fontsize=8, color=INK)
    middle = (left * turn) ** 0.5
    axes.text(middle * 0.8, attainable(middle, shown.peak, shown.bandwidth) * 1.3, f"{shown.bandwidth / 1e9:,.4g} GB/s",
              fontsize=8, ha="right", color=INK)
    for intensity, rate in shown.points.values():
        axes.plot([intensity] * 2, [rate, attainable(intensity, shown.peak, shown.bandwidth)], color=EACH, linewidth=1)
    axes.plot(intensities, rates, "o", color=RATE, markersize=7, markeredgecolor=INK, markeredgewidth=0.5, zorder=3)
    _labels(axes, shown)
    axes.set_xlabel("arithmetic intensity, FLOPs a byte", fontsize=8.5, color=INK)
    axes.set_ylabel("FLOP/s", fontsize=8.5, color=INK)
    return png(figure)


def _labels(axes, shown: Roofline) -> None:
    """The operations' names at the right edge, in the order of their rates, each joined to its point."""
    place = axes.transAxes.inverted()
    names = list(shown.points)
    heights = [place.transform(axes.transData.transform(shown.points[name]))[1] for name in names]
    for name, y in zip(names, spread(heights, 0.085, 0.03, 0.97), strict=True):
        axes.annotate(name, shown.points[name], xytext=(1.025, y), textcoords="axes fraction", fontsize=8.5, color=INK,
                      va="center", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": LEADER, "linewidth": 0.8, "shrinkB": 5})
