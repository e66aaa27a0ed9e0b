"""How much of a gradient is noise: the simple noise scale from gradients at two batch sizes, with its uncertainty."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gpucourse.errors import BadInput, positive_int
from gpucourse.evidence import Figure, Readings

DRAWS = 1000  # resamplings of the windows
INTERVAL = 0.9  # of them lie between low and high


@dataclass(frozen=True)
class NoiseScale:
    """value: samples at which noise and signal are equally long; infinite where no signal is left. low, high: the
    middle 90 % of what resampled windows give. noise: tr Σ of one sample's gradient. signal: |G|²."""

    value: float
    low: float
    high: float
    noise: float
    signal: float
    windows: int
    unit: str
    device: str

    def readings(self, name: str = "gradient noise scale") -> Readings:
        return Readings("measured", (Figure(name, self.value, self.unit, "measured", self.device),), self.device)

    def __str__(self) -> str:
        return (f"gradient noise scale {self.value:.3g} {self.unit} (middle 90 % {self.low:.3g} to {self.high:.3g}, "
                f"{self.windows} windows resampled), measured on {self.device}")


def noise_scale(small: Sequence[float], big: Sequence[float], small_batch: int, big_batch: int, device: str,
                unit: str = "sequences", seed: int = 0) -> NoiseScale:
    """tr Σ / |G|², unbiased in numerator and denominator (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).

    small: for each window the mean squared norm of the gradients of its micro-batches of `small_batch` samples.
    big: the squared norm of the window's mean gradient, over `big_batch` samples. Raises BadInput for fewer than two
    windows or for sizes that do not grow.
    """
    if len(small) != len(big) or len(small) < 2:
        raise BadInput(f"the noise scale was given {len(small)} and {len(big)} norms; give one of each for each of at "
                       "least 2 windows")
    if positive_int("small batch", small_batch) >= positive_int("big batch", big_batch):
        raise BadInput(f"the big batch is {big_batch}, the small one {small_batch}; the big one must be larger")
    noise, signal = solved(fmean(small), fmean(big), small_batch, big_batch)
    generator, pairs = random.Random(seed), list(zip(small, big, strict=True))
    scales = []
    for _ in range(DRAWS):
        drawn = generator.choices(pairs, k=len(pairs))
        means = fmean(one for one, _ in drawn), fmean(other for _, other in drawn)
        scales.append(ratio(*solved(*means, small_batch, big_batch)))
    scales.sort()
    low, high = (scales[round((DRAWS - 1) * (1 + side * INTERVAL) / 2)] for side in (-1, 1))
    return NoiseScale(ratio(noise, signal), low, high, noise, signal, len(pairs), unit, device)


def solved(small: float, big: float, small_batch: int, big_batch: int) -> tuple[float, float]:
    """(tr Σ, |G|²) from the mean squared norms: of n samples' gradient it is |G|² + tr Σ / n."""
    noise = (small - big) / (1 / small_batch - 1 / big_batch)
    return noise, (big_batch * big - small_batch * small) / (big_batch - small_batch)


def ratio(noise: float, signal: float) -> float:
    return noise / signal if signal > 0 else math.inf
