"""The two pictures of lesson 05: what they say as text, and that they are drawn small enough to keep."""

import pytest

from gpucourse.live.micro_batches import MicroBatches
from gpucourse.live.rates import Rates

RATES = (0.1, 0.2, 0.4, 0.8)
CHANGE = {1: (-0.03, -0.05, -0.03, 0.2), 16: (-0.02, -0.06, -0.08, -0.04), 64: (-0.02, -0.05, -0.07, -0.05)}


def test_rates_reads_the_best_of_each_batch_off_a_parabola():
    picture = Rates(RATES, CHANGE, "cpu (2 cores)")
    assert picture.best(1) == pytest.approx((0.2, -0.05))  # its neighbours are equal
    assert picture.best(64) == pytest.approx((0.4, -0.07))
    parabola = [(x - 1.75) ** 2 - 1 for x in range(4)]  # over log2(rate / 0.1)
    rate, change = Rates(RATES, {8: parabola}, "cpu").best(8)
    assert (rate, change) == pytest.approx((0.1 * 2**1.75, -1.0))


def test_a_best_rate_at_the_end_of_the_row_is_left_there():
    assert Rates(RATES, {1: (-0.1, 0.0, 0.1, 0.2)}, "cpu").best(1) == (0.1, -0.1)


def test_rates_says_how_the_best_rate_moves():
    picture = Rates(RATES, {1: CHANGE[1], 16: CHANGE[64], 64: CHANGE[64]}, "cpu (2 cores)")
    assert picture.title == "From batch 1 to 16 the best learning rate grows by 2 ×, from 16 to 64 by 1 ×"
    assert "batch 64: 0.4" in str(picture) and "measured on cpu (2 cores)" in str(picture)
    assert 1_000 < len(picture._repr_png_()) < 60_000


def test_micro_batches_draws_predictions_where_nothing_was_measured():
    picture = MicroBatches(rate={1: 10.0, 2: 15.0, 4: 18.0}, spread={1: (9.0, 11.0), 2: (14.0, 16.0), 4: (17.0, 19.0)},
                           rate_predicted={1: 10.0, 2: 14.0, 4: 18.0}, peak={1: 2**20, 4: 3 * 2**20},
                           peak_predicted={1: 2**20, 2: 2 * 2**20, 4: 3 * 2**20}, title="finding", device="cpu")
    assert str(picture) == ("finding (measured on cpu): samples/s by micro-batch 1: 10, 2: 15, 4: 18; "
                            "peak in MiB 1: 1.0, 4: 3.0")
    assert 1_000 < len(picture._repr_png_()) < 60_000
