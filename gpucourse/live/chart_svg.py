"""The live chart: a picture → SVG text, quick enough for five a second beside a training loop."""

from collections.abc import Iterable
from html import escape

from gpucourse.live.picture import (
    EACH,
    FAINT,
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
)
from gpucourse.live.ranks_picture import Curve, RanksPicture
from gpucourse.live.svg_parts import Box, axes, coordinates, labelled, polyline, words

WIDTH, HEIGHT = 950, 300
DASHES = ("5 3", "1 3")


def svg(picture: Picture | RanksPicture) -> str:
    """The picture as one SVG element."""
    seconds = max(picture.seconds, 1e-3)
    memory = Box(52, 52, 262, 204, seconds, picture.most * 1.06 / picture.unit[0])
    rate = Box(552, 52, 252, 204, seconds, picture.fastest * 1.1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'style="max-width:100%;height:auto" font-family="Helvetica, Arial, sans-serif" font-size="11" role="img">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="8" y="18" font-size="14" font-weight="bold" fill="{INK}">{escape(picture.title)}'
        f'<tspan dx="10" font-size="11" font-weight="normal" fill="{FAINT}">'
        f"{escape(f'{picture.state} · {picture.device}')}</tspan></text>",
        words(8, 40, f"memory, {picture.unit[1]}: {picture.memory_is}"),
        words(rate.left - 44, 40, "throughput, samples/s"),
        *axes(memory),
        *axes(rate),
        *(_ranks(picture, memory, rate) if isinstance(picture, RanksPicture) else _loop(picture, memory, rate)),
        "</svg>",
    ]
    return "".join(parts)


def _loop(picture: Picture, memory: Box, rate: Box) -> Iterable[str]:
    yield from _memory(picture, memory)
    yield from _rates(picture, rate)


def _ranks(picture: RanksPicture, memory: Box, rate: Box) -> Iterable[str]:
    labels = []
    if picture.budget:
        line, label = _budget(picture, memory)
        yield line
        labels.append(label)
    yield from _curves(memory, picture.memory_curves(), labels)
    yield from _curves(rate, picture.rate_curves(), [])
    if not picture.rate_curves():
        yield _no_step(rate)


def _curves(box: Box, curves: Iterable[Curve], labels: list[tuple[float, str, str | None]]) -> Iterable[str]:
    for curve in curves:
        heights = [box.y(value) for value in curve.values]
        yield polyline([f"{box.x(time):.1f}" for time in curve.times], heights, curve.colour, 1.8,
                       ("", *DASHES)[curve.dashes])
        if curve.label:
            labels.append((heights[-1], curve.label, curve.colour))
    yield from labelled(box, labels)


def _memory(picture: Picture, box: Box) -> Iterable[str]:
    if not picture.memory:
        return
    scale, _ = picture.unit
    times = [f"{box.x(point.time):.1f}" for point in picture.memory]
    edges = layers(picture.memory)
    for (_, colour), edge in reversed(list(zip(LAYERS, edges, strict=True))):  # each covers the lower part of the last
        curve = coordinates(times, [box.y(size / scale) for size in edge])
        yield f'<polygon points="{times[0]},{box.bottom} {curve} {times[-1]},{box.bottom}" fill="{colour}"/>'
    labels, below = [], 0.0
    for (name, colour), edge in zip(LAYERS, edges, strict=True):
        above = edge[-1] / scale
        if above > below:
            labels.append((box.y((below + above) / 2), f"{name} {short(above - below)}", colour))
        below = above
    shown = bands(picture, box.width)
    for begin, end, phase in shown:
        yield (f'<rect x="{box.x(begin):.1f}" y="{box.top}" width="{box.x(end) - box.x(begin):.1f}" '
               f'height="{box.height}" fill="black" opacity="{PHASE_SHADE[phase]}"/>')
    for number, (name, size) in enumerate(picture.memory[-1].lines):
        heights = [box.y(dict(point.lines).get(name, 0) / scale) for point in picture.memory]
        yield polyline(times, heights, INK, 1.2, DASHES[number % 2])
        labels.append((heights[-1], f"{name} {short(size / scale)}", None))
    if picture.budget:
        line, label = _budget(picture, box)
        yield line
        labels.append(label)
    yield from labelled(box, labels)
    if shown:
        yield words(box.left, box.bottom + 34, PHASES_SAY, ink=FAINT)


def _budget(picture: Picture | RanksPicture, box: Box) -> tuple[str, tuple[float, str, str]]:
    """The line and its label."""
    size = picture.budget / picture.unit[0]
    height = box.y(size)
    return (polyline([f"{box.left}", f"{box.left + box.width}"], [height, height], LIMIT_INK, 1.5, "6 3"),
            (height, f"budget {short(size)}", LIMIT_INK))


def _rates(picture: Picture, box: Box) -> Iterable[str]:
    if not picture.steps:
        yield _no_step(box)
        return
    times = [f"{box.x(point.end):.1f}" for point in picture.steps]
    rates = [point.rate for point in picture.steps]
    medians = running_median(rates)
    together = picture.steps[0].steps
    yield polyline(times, [box.y(rate) for rate in rates], EACH, 1)
    yield polyline(times, [box.y(rate) for rate in medians], RATE, 2.2)
    each = "each step" if together == 1 else f"mean of {together} steps"
    yield from labelled(box, [(box.y(medians[-1]), f"running median {short(medians[-1])}", RATE),
                              (box.y(rates[-1]), each, EACH)])


def _no_step(box: Box) -> str:
    return words(box.left + 8, box.top + 20, "no step yet", ink=FAINT)
