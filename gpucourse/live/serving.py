"""Two pictures of a server: what a larger batch gives and takes, and who runs and who waits as time passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.live.panel import page, png
from gpucourse.live.picture import FAINT, INK, RATE

WAITS = "#d9822b"


@dataclass(frozen=True)
class Batches:
    """seconds: {batch: seconds of one decode step}. where: the kind of evidence and the device."""

    title: str
    seconds: Mapping[int, float]
    where: str

    def __str__(self) -> str:
        ends = [f"{b / self.seconds[b]:,.4g} tokens/s at {1e3 * self.seconds[b]:.3g} ms a token with batch {b}"
                for b in (min(self.seconds), max(self.seconds))]
        return f"{self.title}: {', '.join(ends)}, {self.where}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return batches_png(self)


@dataclass(frozen=True)
class Queue:
    """turns: what predict.simulation says of each turn of the server."""

    title: str
    turns: Sequence
    where: str

    def __str__(self) -> str:
        most = max(turn.running for turn in self.turns), max(turn.waiting for turn in self.turns)
        return f"{self.title}: at most {most[0]} running and {most[1]} waiting, {self.where}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return queue_png(self)


def batches(title: str, seconds: Mapping[int, float], where: str) -> Batches:
    """Throughput and time a token against the batch; the title states what the picture shows."""
    return Batches(title, dict(sorted(seconds.items())), where)


def queue(title: str, turns: Sequence, where: str) -> Queue:
    """Requests running and waiting over time, and when some were pre-empted."""
    return Queue(title, tuple(turns), where)


def batches_png(shown: Batches) -> bytes:
    figure, (left, right) = plots(shown.title, shown.where, 2)
    counts, each = list(shown.seconds), list(shown.seconds.values())
    left.plot(counts, [b / s for b, s in shown.seconds.items()], "o-", color=RATE, markersize=5)
    left.plot(counts, [b / each[0] for b in counts], color=FAINT, linewidth=1, linestyle=":")
    left.annotate("if a step never took longer", (counts[-1], counts[-1] / each[0]), xytext=(-24, -2), fontsize=8,
                  textcoords="offset points", ha="right", va="top", color=FAINT)
    right.plot(counts, [1e3 * s for s in each], "o-", color=RATE, markersize=5)
    for axes, what in ((left, "tokens/s, all requests"), (right, "ms a token, each request")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("requests in the batch", fontsize=8.5, color=INK)
        axes.set_ylabel(what, fontsize=8.5, color=INK)
        axes.set_ylim(0, axes.get_ylim()[1])
    return png(figure)


def queue_png(shown: Queue) -> bytes:
    figure, (axes,) = plots(shown.title, shown.where, 1)
    times = [turn.end for turn in shown.turns]
    for name, colour, style in (("running", RATE, "-"), ("waiting", WAITS, "--")):
        counts = [getattr(turn, name) for turn in shown.turns]
        axes.plot(times, counts, color=colour, linewidth=1.6, linestyle=style, drawstyle="steps-post")
        place = max(range(len(counts)), key=counts.__getitem__)
        axes.annotate(name, (times[place], counts[place]), xytext=(4, 3), textcoords="offset points", fontsize=8.5,
                      color=INK)
    _strokes(axes, [turn.end for turn in shown.turns if turn.preempted], times[-1])
    axes.set_xlabel("s", fontsize=8.5, color=INK)
    axes.set_ylabel("requests", fontsize=8.5, color=INK)
    return png(figure)


def _strokes(axes, lost: Sequence[float], end: float) -> None:
    """A row of strokes below the lines, with its name on the side where there is more room."""
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.16 * top, top * 1.04)
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
    if not lost:
        return
    axes.plot(lost, [-0.09 * top] * len(lost), "|", color=INK, markersize=9, markeredgewidth=0.7)
    before = lost[0] > end - lost[-1]
    axes.annotate("each stroke: somebody is pre-empted", (lost[0] if before else lost[-1], -0.09 * top),
                  xytext=(-8 if before else 8, 0), textcoords="offset points", ha="right" if before else "left",
                  va="center", fontsize=8, color=FAINT)


def plots(title: str, where: str, count: int):
    """A page with `count` axes side by side."""
    width = 0.92 / count
    boxes = [(0.07 + place * width, 0.155, width - 0.07, 0.63) for place in range(count)]
    return page(title, where, *boxes, height=3.2)
