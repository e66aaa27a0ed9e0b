"""The pieces of the live chart's SVG: a plot's place and scale, its axes, lines and labels."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from gpucourse.live.picture import FAINT, GRID, INK, short, spread, ticks


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


def axes(box: Box) -> Iterable[str]:
    for value in ticks(box.most):
        y = box.y(value)
        yield f'<path d="M{box.left} {y:.1f}h{box.width}" stroke="{GRID}"/>'
        yield words(box.left - 5, y + 4, short(value), ink=FAINT, anchor="end")
    for value in ticks(box.seconds)[1:]:
        yield words(box.x(value), box.bottom + 15, f"{short(value)} s", ink=FAINT, anchor="middle")


def labelled(box: Box, labels: list[tuple[float, str, str | None]]) -> Iterable[str]:
    x = box.left + box.width + 6
    heights = spread([y for y, _, _ in labels], 15, box.top + 4, box.bottom)
    for y, (_, text, colour) in zip(heights, labels, strict=True):
        if colour:
            yield (f'<rect x="{x}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}" stroke="{INK}" '
                   'stroke-width=".4"/>')
        yield words(x + 12, y + 4, text)


def polyline(xs: list[str], ys: list[float], colour: str, width: float, dashes: str = "") -> str:
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (f'<polyline points="{coordinates(xs, ys)}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dash}/>')


def coordinates(xs: list[str], ys: list[float]) -> str:
    return " ".join([f"{x},{y:.1f}" for x, y in zip(xs, ys, strict=True)])


def words(x: float, y: float, text: str, ink: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" text-anchor="{anchor}" font-size="11">{escape(text)}</text>'
