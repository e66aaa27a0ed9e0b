"""The gradient noise scale against cases in which it is known, and what a batch buys at it."""

import math
import random

import pytest

from gpucourse.errors import BadInput
from gpucourse.measure.noise_scale import noise_scale, solved
from gpucourse.predict.critical_batch import progress, samples, steps

SIZE, SIGNAL = 300, 0.2


def norms(windows: int, big_batch: int, spread: float, seed: int, signal: float = SIGNAL):
    """(small, big) squared norms of gradients whose elements are `signal` plus noise of deviation `spread`."""
    draw = random.Random(seed)
    small, big = [], []
    for _ in range(windows):
        each = [[signal + draw.gauss(0, spread) for _ in range(SIZE)] for _ in range(big_batch)]
        small.append(sum(x * x for one in each for x in one) / big_batch)
        big.append(sum((sum(column) / big_batch) ** 2 for column in zip(*each, strict=True)))
    return small, big


def test_exact_expectations_are_solved_exactly():
    noise, signal = 7.0, 3.0
    assert solved(signal + noise / 2, signal + noise / 32, 2, 32) == pytest.approx((noise, signal), rel=1e-12)


def test_a_known_scale_lies_in_its_interval_as_often_as_it_says():
    true = (0.8 / SIGNAL) ** 2
    found = [noise_scale(*norms(12, 8, 0.8, seed), 1, 8, device="played") for seed in range(20)]
    inside = sum(scale.low <= true <= scale.high for scale in found)
    assert inside >= 14  # 18 of 20 expected; fewer than 14 would happen once in 400
    assert sum(scale.value for scale in found) / len(found) == pytest.approx(true, rel=0.1)


def test_more_windows_narrow_the_interval():
    few, many = (noise_scale(*norms(count, 8, 0.8, 1), 1, 8, device="played") for count in (6, 60))
    assert many.high - many.low < (few.high - few.low) / 2


def test_without_signal_the_interval_reaches_infinity():
    scale = noise_scale(*norms(10, 8, 0.8, 3, signal=0.0), 1, 8, device="played")
    assert scale.high == math.inf and "inf" in str(scale)


def test_it_reads_as_a_measured_figure_with_its_unit():
    (figure,) = noise_scale([3.0, 3.2], [2.0, 2.1], 1, 4, device="cpu (2 cores)", unit="tokens").readings().figures
    assert (figure.name, figure.unit, figure.kind, figure.device) == ("gradient noise scale", "tokens", "measured",
                                                                     "cpu (2 cores)")


@pytest.mark.parametrize(("small", "big", "sizes", "says"), [
    ([1.0], [1.0], (1, 4), "at least 2 windows"),
    ([1.0, 2.0], [1.0], (1, 4), "2 and 1 norms"),
    ([1.0, 2.0], [1.0, 1.0], (4, 4), "the big batch is 4, the small one 4"),
    ([1.0, 2.0], [1.0, 1.0], (0, 4), "small batch is 0"),
])
def test_what_cannot_be_solved_is_said(small, big, sizes, says):
    with pytest.raises(BadInput, match=says):
        noise_scale(small, big, *sizes, device="played")


def test_at_the_noise_scale_all_three_are_at_their_middle():
    assert (progress(100, 100), steps(100, 100), samples(100, 100)) == (0.5, 2.0, 2.0)


@pytest.mark.parametrize("batch", [3, 100, 7_000])
def test_steps_and_samples_lie_on_the_papers_curve(batch):
    # McCandlish et al. 2018: (S/S_min - 1)(E/E_min - 1) = 1, and samples are steps × batch
    noise = 250.0
    assert (steps(batch, noise) - 1) * (samples(batch, noise) - 1) == pytest.approx(1)
    assert steps(batch, noise) * batch / samples(batch, noise) == pytest.approx(noise)
    assert progress(batch, noise) * steps(batch, noise) == pytest.approx(1)


@pytest.mark.parametrize("wrong", [0, -1, math.inf])
def test_a_batch_must_be_a_number_above_0(wrong):
    with pytest.raises(BadInput, match="batch is"):
        steps(wrong, 10)
