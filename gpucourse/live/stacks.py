"""What a total is made of: one horizontal bar for each case, its parts in turn."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucourse.catalog.units import GiB
from gpucourse.live.panel import SHADES, panel, png
from gpucourse.live.picture import INK


@dataclass(frozen=True)
class Stacks:
    """Shown as a picture in a notebook, and as a line of text elsewhere. bars: {case: {part: bytes}}."""

    bars: Mapping[str, Mapping[str, float]]
    title: str
    kind: str
    line: tuple[str, float] | None = None  # a name and bytes

    def __str__(self) -> str:
        totals = ", ".join(f"{case} {sum(parts.values()) / GiB:.1f}" for case, parts in self.bars.items())
        return f"{self.title} ({self.kind}): GiB: {totals}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        figure, axes = panel(self.title, f"GiB, {self.kind}", right=0.97, left=0.2)
        cases = list(self.bars)
        names = dict.fromkeys(part for parts in self.bars.values() for part in parts)
        ends = [0.0] * len(cases)
        for part, shade in zip(names, SHADES, strict=False):
            sizes = [self.bars[case].get(part, 0) / GiB for case in cases]
            axes.barh(cases, sizes, left=ends, color=shade, edgecolor=INK, linewidth=0.4, height=0.66, label=part)
            ends = [end + size for end, size in zip(ends, sizes, strict=True)]
        for place, end in enumerate(ends):
            axes.text(end + max(ends) * 0.008, place, f"{end:.1f}", va="center", fontsize=8.5, color=INK,
                      bbox=dict(facecolor="white", edgecolor="none", pad=0.6))
        if self.line:
            axes.axvline(self.line[1] / GiB, color=INK, linewidth=1, linestyle=(0, (4, 2)))
            axes.text(self.line[1] / GiB + max(ends) * 0.008, -0.72, self.line[0], fontsize=8, color=INK, va="center")
        axes.set_ylim(len(cases) - 0.4, -1)
        axes.set_xlim(0, max(ends) * 1.08)
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower right", fontsize=8.5, frameon=True, facecolor="white", edgecolor="none")
        return png(figure)
