"""The chart when the cell has ended: the same picture as a PNG of notebook width, under 60 KB."""

import io

from gpucourse.live.picture import (
    EACH,
    FAINT,
    GRID,
    INK,
    LAYERS,
    LIMIT_INK,
    PHASE_SHADE,
    PHASES_SAY,
    RATE,
    Picture,
    bands,
    layers,
    running_median,
    short,
    spread,
)
from gpucourse.live.ranks_picture import Curve, RanksPicture

DPI = 100
SIZE = (9.5, 3.0)  # inches
DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.5)))


def png(picture: Picture | RanksPicture) -> bytes:
    """The picture as PNG bytes. Uses no pyplot, so the learner's figures and backend are left alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(SIZE, DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    memory = figure.add_axes((0.055, 0.16, 0.276, 0.66))
    rate = figure.add_axes((0.581, 0.16, 0.265, 0.66))
    title = figure.text(0.008, 0.93, picture.title, fontsize=10.5, fontweight="bold", color=INK)
    right = title.get_window_extent(canvas.get_renderer()).x1 / (SIZE[0] * DPI)
    figure.text(right + 0.01, 0.93, f"{picture.state} · {picture.device}", fontsize=8, color=FAINT)
    figure.text(0.008, 0.855, f"memory, {picture.unit[1]}: {picture.memory_is}", fontsize=8, color=INK)
    figure.text(0.534, 0.855, "throughput, samples/s", fontsize=8, color=INK)
    for axes in (memory, rate):
        _style(axes, picture)
    memory.set_ylim(0, picture.most * 1.06 / picture.unit[0])
    rate.set_ylim(0, picture.fastest * 1.1)
    if isinstance(picture, RanksPicture):
        _ranks(memory, rate, picture)
    else:
        _memory(memory, picture)
        _rates(rate, picture)
    canvas.draw()
    drawn = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    buffer = io.BytesIO()
    drawn.quantize(256).save(buffer, "PNG", optimize=True)  # a palette: a third of the bytes
    return buffer.getvalue()


def _style(axes, picture: Picture) -> None:
    axes.set_xlim(0, max(picture.seconds, 1e-3))
    axes.tick_params(labelsize=8, colors=FAINT, length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{short(value)} s" if value else "")
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.locator_params(nbins=5)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _memory(axes, picture: Picture) -> None:
    scale, _ = picture.unit
    if not picture.memory:
        return
    times = [point.time for point in picture.memory]
    labels, lower = [], [0.0] * len(times)
    for (name, colour), edge in zip(LAYERS, layers(picture.memory), strict=True):
        upper = [size / scale for size in edge]
        axes.fill_between(times, lower, upper, color=colour, linewidth=0)
        if upper[-1] > lower[-1]:
            labels.append(((lower[-1] + upper[-1]) / 2, f"{name} {short(upper[-1] - lower[-1])}", colour))
        lower = upper
    for begin, end, phase in bands(picture, axes.get_window_extent().width):
        axes.axvspan(begin, end, color="black", alpha=PHASE_SHADE[phase], linewidth=0)
    for number, (name, size) in enumerate(picture.memory[-1].lines):
        values = [dict(point.lines).get(name, 0) / scale for point in picture.memory]
        axes.plot(times, values, color=INK, linewidth=1.2, linestyle=("--", ":")[number % 2])
        labels.append((values[-1], f"{name} {short(size / scale)}", None))
    _labels(axes, [*labels, *_budget(axes, picture)])
    if bands(picture, axes.get_window_extent().width):
        axes.text(0, -0.2, PHASES_SAY, transform=axes.transAxes, fontsize=7.5, color=FAINT)


def _budget(axes, picture: Picture | RanksPicture) -> list[tuple[float, str, str]]:
    """Draws the line, if there is a budget; its label."""
    if not picture.budget:
        return []
    size = picture.budget / picture.unit[0]
    axes.axhline(size, color=LIMIT_INK, linewidth=1.5, linestyle="--")
    return [(size, f"budget {short(size)}", LIMIT_INK)]


def _ranks(memory, rate, picture: RanksPicture) -> None:
    _curves(memory, picture.memory_curves(), _budget(memory, picture))
    _curves(rate, picture.rate_curves(), [])
    if not picture.rate_curves():
        _no_step(rate)


def _curves(axes, curves: list[Curve], labels: list[tuple[float, str, str | None]]) -> None:
    for curve in curves:
        axes.plot(curve.times, curve.values, color=curve.colour, linewidth=1.6, linestyle=DASHES[curve.dashes])
    _labels(axes, labels + [(curve.values[-1], curve.label, curve.colour) for curve in curves if curve.label])


def _rates(axes, picture: Picture) -> None:
    if not picture.steps:
        _no_step(axes)
        return
    times = [point.end for point in picture.steps]
    rates = [point.rate for point in picture.steps]
    medians = running_median(rates)
    axes.plot(times, rates, color=EACH, linewidth=0.9)
    axes.plot(times, medians, color=RATE, linewidth=2)
    together = picture.steps[0].steps
    each = "each step" if together == 1 else f"mean of {together} steps"
    _labels(axes, [(medians[-1], f"running median {short(medians[-1])}", RATE), (rates[-1], each, EACH)])


def _no_step(axes) -> None:
    axes.text(0.03, 0.9, "no step", transform=axes.transAxes, fontsize=8, color=FAINT)


def _labels(axes, labels: list[tuple[float, str, str | None]]) -> None:
    most = axes.get_ylim()[1]
    heights = spread([value / most for value, _, _ in labels], 0.072, 0.02, 0.98)
    for y, (_, text, colour) in zip(heights, labels, strict=True):
        if colour:
            axes.plot(1.036, y, "s", color=colour, markersize=5.5, markeredgecolor=INK, markeredgewidth=0.4,
                      transform=axes.transAxes, clip_on=False)
        axes.text(1.065, y, text, transform=axes.transAxes, va="center", fontsize=8, color=INK)
