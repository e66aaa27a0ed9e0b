"""What a larger batch buys while gradients are noisy (McCandlish et al. 2018, arXiv 1812.06162, section 2).

batch and noise, the gradient noise scale, are counted in the same unit: sequences, or tokens.
"""

from gpucourse.errors import positive


def progress(batch: float, noise: float) -> float:
    """The improvement of one step at its best learning rate, as a share of what the exact gradient would give.

    The best learning rate is the same share of the exact gradient's.
    """
    return 1 / (1 + positive("noise", noise) / positive("batch", batch))


def steps(batch: float, noise: float) -> float:
    """Steps to a given loss, as a multiple of the fewest, which an endless batch needs."""
    return 1 + positive("noise", noise) / positive("batch", batch)


def samples(batch: float, noise: float) -> float:
    """Samples to a given loss, as a multiple of the fewest, which a vanishing batch needs."""
    return 1 + positive("batch", batch) / positive("noise", noise)
