"""What each format can hold, over the magnitudes that a tensor has."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.live.panel import page, png
from gpucourse.live.picture import EACH, INK, RATE
from gpucourse.predict.formats import Format


@dataclass(frozen=True)
class RangesChart:
    """Shown as a picture in a notebook, and as a line of text elsewhere. shares: {exponent of two: share}."""

    title: str
    formats: tuple[Format, ...]
    shares: Mapping[int, float]
    where: str

    def __str__(self) -> str:
        lost = {f.name: sum(share for power, share in self.shares.items() if 2.0 ** (power + 1) <= f.smallest / 2)
                for f in self.formats}
        below = ", ".join(f"{name} {share:.0%}" for name, share in lost.items())
        return f"{self.title} ({self.where}): share below half of the smallest number: {below}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        return drawn(self)


def ranges(title: str, formats: Sequence[Format], shares: Mapping[int, float], where: str) -> RangesChart:
    """Draw the range of each format under the share of values at each power of two; the title states the finding."""
    return RangesChart(title, tuple(formats), shares, where)


def drawn(shown: RangesChart) -> bytes:
    figure, (above, below) = page(shown.title, shown.where, (0.075, 0.52, 0.9, 0.30), (0.075, 0.15, 0.9, 0.35),
                                  height=3.4, grid="x")
    below.sharex(above)
    above.bar(list(shown.shares), [100 * share for share in shown.shares.values()], width=1.0, align="edge", color=EACH,
              edgecolor=INK, linewidth=0.3)
    above.set_ylabel("% of values", fontsize=8.5, color=INK)
    for row, format in enumerate(reversed(shown.formats)):
        tiny, normal, large = (math.log2(x) for x in (format.smallest, format.smallest_normal, format.largest))
        below.barh(row, large - normal, left=normal, height=0.55, color=RATE)
        below.barh(row, normal - tiny, left=tiny, height=0.55, color="white", edgecolor=RATE, linewidth=0.8)
    left = min(min(shown.shares), *(math.log2(f.smallest_normal) for f in shown.formats if f.exponent < 8)) - 6
    below.set(xlim=(left, 20), yticks=range(len(shown.formats)), ylim=(-0.5, len(shown.formats) - 0.5))
    below.set_yticklabels([f.name for f in reversed(shown.formats)], fontsize=8.5)
    below.set_xlabel("magnitude, as a power of two; filled: normal numbers, hollow: subnormal, with fewer bits",
                     fontsize=8.5, color=INK)
    above.tick_params(labelbottom=False)
    return png(figure)
