"""What one step gains against its learning rate, for several batch sizes: where the best rate lies, how it moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.live.panel import panel, png
from gpucourse.live.picture import INK, spread

# From the smallest batch to the largest; apart in grey and for colour-blind readers.
LINES = (("#d9822b", "-"), ("#9bbbd9", (0, (5, 1.5))), ("#3d7ab3", (0, (1.5, 1.5))), ("#16325c", "-"))


@dataclass(frozen=True)
class Rates:
    """change: {batch: the change of the loss at each of `rates`}, for 3 or 4 batches, the smallest first; each rate is
    the same multiple of the one before.

    Shown as a picture in a notebook, and as a line of text elsewhere.
    """

    rates: Sequence[float]
    change: Mapping[int, Sequence[float]]
    device: str

    @property
    def title(self) -> str:
        first, *_, before, last = (self.best(batch)[0] for batch in self.change)
        one, *_, nearly, most = self.change
        return (f"From batch {one} to {nearly} the best learning rate grows by {before / first:.2g} ×, "
                f"from {nearly} to {most} by {last / before:.2g} ×")

    def best(self, batch: int) -> tuple[float, float]:
        """(the learning rate that gains most, the change of the loss there).

        Read off a parabola over the logarithm of the rate, through the best rate and its neighbours.
        """
        change = self.change[batch]
        i = min(range(len(change)), key=change.__getitem__)
        if i in (0, len(change) - 1):
            return self.rates[i], change[i]
        before, at, after = change[i - 1:i + 2]
        shift = (before - after) / (2 * (before - 2 * at + after) or 1)  # in steps of the row
        return self.rates[i] * (self.rates[i + 1] / self.rates[i])**shift, at - (before - after) * shift / 4

    def __str__(self) -> str:
        best = ", ".join(f"batch {batch}: {self.best(batch)[0]:.2g}" for batch in self.change)
        return f"{self.title} (measured on {self.device}): best learning rate {best}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes:
        figure, axes = panel(self.title, "change of the loss by one step of SGD, mean over several batches; ring: the "
                             f"best of each; measured on {self.device}", right=0.87, left=0.08)
        deepest = min(min(change) for change in self.change.values())
        low, high = deepest * 1.12, -deepest * 0.5
        ends = []
        for (batch, change), (shade, dash) in zip(self.change.items(), LINES, strict=False):
            axes.plot(self.rates, change, color=shade, linestyle=dash, linewidth=1.9)
            axes.plot(*self.best(batch), "o", color="white", markeredgecolor=shade, markeredgewidth=1.8, markersize=7)
            ends.append((min(change[-1], high + change[-1] * 1e-6), f"batch {batch}", shade))  # clipped: in their order
        places = spread([(y - low) / (high - low) for y, _, _ in ends], 0.075, 0.03, 0.97)
        for place, (_, name, shade) in zip(places, ends, strict=True):
            axes.text(1.012, place, name, transform=axes.transAxes, va="center", fontsize=8.5, color=shade,
                      fontweight="bold")
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_ylim(low, high)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(self.rates), [f"{rate:.3g}" for rate in self.rates])
        axes.set_xlabel("learning rate", fontsize=8.5, color=INK)
        axes.set_ylabel("change of the loss, nats", fontsize=8.5, color=INK)
        return png(figure)
