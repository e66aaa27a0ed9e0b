"""What ranks did and when, as bars on one clock: a row for each rank's own work and, below it, one for its link."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from gpucourse.live.panel import page, png
from gpucourse.live.picture import INK

# From dark to light, so that neighbours differ in grey too; the same name has the same shade on all ranks.
SHADES = ("#16325c", "#d9822b", "#8db4d8", "#f0d9a8", "#5b7f4a", "#c9c9c9")
ROW, LINK = 0.42, 0.26  # heights of the bars, of a rank's height of 1
MOST = 4000  # bars


@dataclass(frozen=True)
class TimelineChart:
    """Shown as a picture in a notebook, and as a line of text elsewhere. spans: of each rank, in seconds."""

    spans: Sequence[Sequence]
    title: str
    kind: str
    begin: float
    end: float

    def __str__(self) -> str:
        return f"{self.title} ({self.kind}): {len(self.spans)} ranks, {1e3 * (self.end - self.begin):.4g} ms"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return drawn(self)


def timeline(spans: Sequence[Sequence], title: str, kind: str = "measured", begin: float | None = None,
             end: float | None = None) -> TimelineChart:
    """Draw `ranks.run(…).timeline`: of each rank, spans with name, begin, end (seconds) and row (`compute` or `link`).

    begin, end: seconds; the part that is shown, all by default. kind: `simulated` where a link was paced.
    """
    every = [*chain.from_iterable(spans)]
    first = min((span.begin for span in every), default=0.0) if begin is None else begin
    last = max((span.end for span in every), default=1.0) if end is None else end
    shown = [[span for span in rank if span.end > first and span.begin < last][:MOST] for rank in spans]
    return TimelineChart(shown, title, kind, first, last)


def drawn(chart: TimelineChart) -> bytes:
    height = 1.0 + 0.55 * max(len(chart.spans), 1)
    links = any(span.row == "link" for rank in chart.spans for span in rank)
    note = f"ms, {chart.kind}" + ("; the narrow bars are the link" if links else "")
    figure, (axes,) = page(chart.title, note, (0.075, 0.42 / height, 0.79, 1 - 1.02 / height), height=height, grid="x")
    names = named(chart)
    shade = {name: SHADES[place % len(SHADES)] for place, name in enumerate(names)}
    for rank, spans in enumerate(chart.spans):
        for row, top, bar in (("compute", rank - 0.36, ROW), ("link", rank + 0.1, LINK)):
            draw_row(axes, chart, [span for span in spans if span.row == row], top, bar, shade)
    scale(axes, chart)
    for place, name in enumerate(names):
        y = 0.97 - place * 0.17 / (height - 1.02)
        axes.plot(1.012, y, "s", color=shade[name], markersize=7, markeredgecolor=INK, markeredgewidth=0.4,
                  transform=axes.transAxes, clip_on=False)
        axes.text(1.025, y, name, transform=axes.transAxes, va="center", fontsize=8.5, color=INK)
    return png(figure)


def named(chart: TimelineChart) -> list[str]:
    """What ranks did, in the order in which they began it; then what their links carried: the same on every run."""
    every = sorted(chain.from_iterable(chart.spans), key=lambda span: span.begin)
    own = dict.fromkeys(span.name for span in every if span.row == "compute")
    return [*own, *sorted({span.name for span in every} - {*own})]


def draw_row(axes, chart: TimelineChart, spans, top: float, bar: float, shade: dict[str, str]) -> None:
    bars = [(1e3 * (span.begin - chart.begin), 1e3 * (span.end - span.begin)) for span in spans]
    axes.broken_barh(bars, (top, bar), facecolors=[shade[span.name] for span in spans], edgecolor=INK, linewidth=0.3)


def scale(axes, chart: TimelineChart) -> None:
    ranks = len(chart.spans)
    axes.set_xlim(0, max(1e3 * (chart.end - chart.begin), 1e-6))
    axes.set_ylim(max(ranks, 1) - 0.5, -0.5)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
