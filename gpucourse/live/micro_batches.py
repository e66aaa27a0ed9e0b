"""Throughput and peak memory against the micro-batch: what was predicted as lines, what was measured as points."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucourse.catalog.units import GiB, MiB
from gpucourse.live.panel import SHADES, page, png
from gpucourse.live.picture import FAINT, INK


@dataclass(frozen=True)
class MicroBatches:
    """{micro-batch: value}. rate: samples/s; spread: its quartiles. peak: bytes. Shown as a picture, else as text."""

    rate: Mapping[int, float]
    spread: Mapping[int, tuple[float, float]]
    rate_predicted: Mapping[int, float]
    peak: Mapping[int, float]
    peak_predicted: Mapping[int, float]
    title: str
    device: str

    def __str__(self) -> str:
        rates = ", ".join(f"{size}: {rate:.3g}" for size, rate in self.rate.items())
        peaks = ", ".join(f"{size}: {peak / MiB:.1f}" for size, peak in self.peak.items())
        return f"{self.title} (measured on {self.device}): samples/s by micro-batch {rates}; peak in MiB {peaks}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        says = f"lines: predicted; points: measured on {self.device}, with the middle half of the runs"
        figure, (left, right) = page(self.title, says, (0.07, 0.16, 0.42, 0.66), (0.57, 0.16, 0.42, 0.66))
        for size, ends in self.spread.items():
            left.plot((size, size), ends, color=SHADES[2], linewidth=3, solid_capstyle="butt")
        unit, name = (GiB, "GiB") if max(self.peak_predicted.values()) >= GiB else (MiB, "MiB")
        draw(left, self.rate_predicted, self.rate, 1)
        draw(right, self.peak_predicted, self.peak, unit)
        for axes, label in ((left, "sequences/s"), (right, f"peak allocated, {name}")):
            axes.set_ylim(0)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(self.rate_predicted), [str(size) for size in self.rate_predicted])
            axes.set_xlabel("micro-batch, sequences", fontsize=8.5, color=INK)
            axes.set_ylabel(label, fontsize=8.5, color=FAINT)
        return png(figure)


def draw(axes, predicted: Mapping[int, float], measured: Mapping[int, float], unit: float) -> None:
    axes.plot(list(predicted), [value / unit for value in predicted.values()], color=SHADES[1], linewidth=1.8)
    axes.plot(list(measured), [value / unit for value in measured.values()], "o", color=SHADES[0], markersize=6)
