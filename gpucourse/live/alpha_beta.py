"""Times of a collective by size, beside what α and β say, and what is left over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.catalog.links import Link
from gpucourse.catalog.units import bytes_text
from gpucourse.live.panel import page, png
from gpucourse.live.picture import FAINT, INK
from gpucourse.predict.link import seconds

INKS = (("#16325c", "o"), ("#d9822b", "s"), ("#6b6b6b", "^"))  # colour and marker, apart in grey


@dataclass(frozen=True)
class Residuals:
    """Shown as a picture in a notebook, and as a line of text elsewhere."""

    sizes: Sequence[float]
    series: Mapping[str, tuple[Sequence[float], Link]]
    collective: str
    ranks: int
    title: str

    def off(self, name: str) -> list[float]:
        """Seen ÷ predicted − 1, for each size."""
        seen, fitted = self.series[name]
        model = [seconds(self.collective, size, self.ranks, fitted) for size in self.sizes]
        return [t / expected - 1 for t, expected in zip(seen, model, strict=True)]

    def __str__(self) -> str:
        worst = ", ".join(f"{name} {max(map(abs, self.off(name))):.0%}" for name in self.series)
        return f"{self.title}: furthest from the model: {worst}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return drawn(self)


def residuals(sizes, series, collective: str, ranks: int, title: str) -> Residuals:
    """sizes: bytes. series: {name: (seconds at each size, the link that was fitted to them)}."""
    return Residuals(sizes, series, collective, ranks, title)


def drawn(chart: Residuals) -> bytes:
    says = f"{chart.collective}, ms; points seen, lines α–β"
    figure, (times, left_over) = page(chart.title, says, (0.06, 0.15, 0.34, 0.64), (0.55, 0.15, 0.3, 0.64), height=3.2,
                                      grid="y")
    for (name, (seen, fitted)), (colour, marker) in zip(chart.series.items(), INKS, strict=False):
        model = [seconds(chart.collective, size, chart.ranks, fitted) * 1e3 for size in chart.sizes]
        times.plot(chart.sizes, model, color=colour, linewidth=1.2)
        times.plot(chart.sizes, [t * 1e3 for t in seen], marker, color=colour, markersize=5)
        left_over.plot(chart.sizes, [100 * value for value in chart.off(name)], f"{marker}-", color=colour, linewidth=1,
                       markersize=5)
        left_over.text(1.03, chart_end(left_over, chart, name), name, transform=left_over.get_yaxis_transform(),
                       fontsize=8.5, color=INK, va="center")
    for axes in (times, left_over):
        axes.set_xscale("log", base=2)
        axes.set_xticks([size for size in chart.sizes][::2], [bytes_text(size) for size in chart.sizes][::2])
        axes.tick_params(labelsize=8)
        axes.minorticks_off()
    times.set_yscale("log")
    times.minorticks_off()
    times.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left_over.axhline(0, color=FAINT, linewidth=0.8)
    left_over.set_title("seen above the fitted line, %", loc="left", fontsize=8, color=FAINT, pad=15)
    return png(figure)


def chart_end(axes, chart: Residuals, name: str) -> float:
    """Where the last point of a series lies, for its label."""
    return 100 * chart.off(name)[-1]
