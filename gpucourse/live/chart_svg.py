"""The live chart: a picture → SVG text, quick enough for five a second beside a training loop."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

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
    ticks,
)

WIDTH, HEIGHT = 950, 300
DASHES = ("5 3", "1 3")


@dataclass(frozen=True)
class Box:
    """A plot's place, and the data at its right and upper edges; both axes begin at 0."""

    left: float
    top: float
    width: float
    height: float
    seconds: float
    most: float

    def x(self, seconds: float) -> float:
        return self.left + self.width * min(1, max(0, seconds / self.seconds))

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.most)

    @property
    def bottom(self) -> float:
        return self.top + self.height


def svg(picture: Picture) -> str:
    """The picture as one SVG element."""
    seconds = max(picture.seconds, 1e-3)
    memory = Box(52, 52, 262, 204, seconds, picture.most * 1.06 / picture.unit[0])
    fastest = max((point.rate for point in picture.steps), default=1.0)
    rate = Box(552, 52, 252, 204, seconds, fastest * 1.1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'style="max-width:100%;height:auto" font-family="Helvetica, Arial, sans-serif" font-size="11" role="img">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="8" y="18" font-size="14" font-weight="bold" fill="{INK}">{escape(picture.title)}'
        f'<tspan dx="10" font-size="11" font-weight="normal" fill="{FAINT}">'
        f"{escape(f'{picture.state} · {picture.device}')}</tspan></text>",
        _text(8, 40, f"memory, {picture.unit[1]}: {picture.memory_is}"),
        _text(rate.left - 44, 40, "throughput, samples/s"),
        *_memory(picture, memory),
        *_rates(picture, rate),
        "</svg>",
    ]
    return "".join(parts)


def _memory(picture: Picture, box: Box) -> Iterable[str]:
    yield from _axes(box)
    if not picture.memory:
        return
    scale, _ = picture.unit
    times = [f"{box.x(point.time):.1f}" for point in picture.memory]
    edges = layers(picture.memory)
    for (_, colour), edge in reversed(list(zip(LAYERS, edges, strict=True))):  # each covers the lower part of the last
        curve = _points(times, [box.y(size / scale) for size in edge])
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
        yield _line(times, heights, INK, 1.2, DASHES[number % 2])
        labels.append((heights[-1], f"{name} {short(size / scale)}", None))
    if picture.budget:
        height = box.y(picture.budget / scale)
        yield _line([f"{box.left}", f"{box.left + box.width}"], [height, height], LIMIT_INK, 1.5, "6 3")
        labels.append((height, f"budget {short(picture.budget / scale)}", LIMIT_INK))
    yield from _labels(box, labels)
    if shown:
        yield _text(box.left, box.bottom + 34, PHASES_SAY, ink=FAINT)


def _rates(picture: Picture, box: Box) -> Iterable[str]:
    yield from _axes(box)
    if not picture.steps:
        yield _text(box.left + 8, box.top + 20, "no step yet", ink=FAINT)
        return
    times = [f"{box.x(point.end):.1f}" for point in picture.steps]
    rates = [point.rate for point in picture.steps]
    medians = running_median(rates)
    together = picture.steps[0].steps
    yield _line(times, [box.y(rate) for rate in rates], EACH, 1)
    yield _line(times, [box.y(rate) for rate in medians], RATE, 2.2)
    each = "each step" if together == 1 else f"mean of {together} steps"
    yield from _labels(box, [(box.y(medians[-1]), f"running median {short(medians[-1])}", RATE),
                             (box.y(rates[-1]), each, EACH)])


def _axes(box: Box) -> Iterable[str]:
    for value in ticks(box.most):
        y = box.y(value)
        yield f'<path d="M{box.left} {y:.1f}h{box.width}" stroke="{GRID}"/>'
        yield _text(box.left - 5, y + 4, short(value), ink=FAINT, anchor="end")
    for value in ticks(box.seconds)[1:]:
        yield _text(box.x(value), box.bottom + 15, f"{short(value)} s", ink=FAINT, anchor="middle")


def _labels(box: Box, labels: list[tuple[float, str, str | None]]) -> Iterable[str]:
    x = box.left + box.width + 6
    heights = spread([y for y, _, _ in labels], 15, box.top + 4, box.bottom)
    for y, (_, text, colour) in zip(heights, labels, strict=True):
        if colour:
            yield (f'<rect x="{x}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}" stroke="{INK}" '
                   'stroke-width=".4"/>')
        yield _text(x + 12, y + 4, text)


def _line(xs: list[str], ys: list[float], colour: str, width: float, dashes: str = "") -> str:
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (f'<polyline points="{_points(xs, ys)}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dash}/>')


def _points(xs: list[str], ys: list[float]) -> str:
    return " ".join([f"{x},{y:.1f}" for x, y in zip(xs, ys, strict=True)])


def _text(x: float, y: float, text: str, ink: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" text-anchor="{anchor}" font-size="11">{escape(text)}</text>'
