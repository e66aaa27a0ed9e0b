import csv
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.links import Link, link, links
from gpucourse.errors import BadInput
from gpucourse.predict.link import (
    COLLECTIVES,
    algorithm_bandwidth,
    bus_bandwidth,
    bus_factor,
    fit,
    half_size,
    messages,
    scaling_efficiency,
    seconds,
)
from gpucourse.settings import DATA

LOG = [(int(row["bytes"]), float(row["microseconds"]) * 1e-6)
       for row in csv.DictReader((DATA / "published" / "allreduce_8xa100.csv").read_text().splitlines())]
COLLECTIVE = st.sampled_from(list(COLLECTIVES))
RANKS = st.integers(1, 4096)


def test_bus_bandwidth_of_an_nccl_log():
    # B18: 8 GiB over 8 A100 in 63,896 µs
    size, elapsed = LOG[-1]
    assert algorithm_bandwidth(size, elapsed) / 1e9 == pytest.approx(134.44, abs=0.01)
    assert bus_bandwidth("all-reduce", size, elapsed, 8) / 1e9 == pytest.approx(235.26, abs=0.01)


def test_half_of_the_peak_is_reached_where_the_link_says():
    # B18: the log reaches half of 235 GB/s between 8 and 16 MiB
    half = bus_bandwidth("all-reduce", *LOG[-1], 8) / 2
    below, above = (size for size in (8 * 2**20, 16 * 2**20))
    assert bus_bandwidth("all-reduce", *next(p for p in LOG if p[0] == below), 8) < half
    assert bus_bandwidth("all-reduce", *next(p for p in LOG if p[0] == above), 8) > half
    assert 4 * 2**20 < half_size("all-reduce", 8, link("nvlink3")) < 16 * 2**20


def test_alpha_and_beta_are_found_again_from_exact_times():
    known = Link("known", 200e9, 5e-6)
    sizes = [1e3, 1e5, 1e7, 1e9]
    found = fit("all-reduce", 8, sizes, [seconds("all-reduce", size, 8, known) for size in sizes])
    assert found.latency == pytest.approx(known.latency)
    assert found.bandwidth == pytest.approx(known.bandwidth)


def test_the_ends_of_the_log_give_its_floor_and_its_peak():
    ends = [LOG[0], LOG[-1]]
    found = fit("all-reduce", 8, *map(list, zip(*ends, strict=True)))
    assert found.latency * messages("all-reduce", 8) == pytest.approx(35e-6, rel=0.02)  # latency floor of B18
    assert found.bandwidth == pytest.approx(235.26e9, rel=0.002)


@pytest.mark.parametrize(("collective", "factor"), [
    ("all-reduce", 1.75), ("all-gather", 0.875), ("reduce-scatter", 0.875), ("all-to-all", 0.875),
    ("broadcast", 1), ("reduce", 1),
])
def test_bus_factors_of_nccl_tests(collective, factor):
    assert bus_factor(collective, 8) == factor


@pytest.mark.parametrize(("few", "many", "efficiency"),
                         [(10475, 9670, 0.923), (44123, 39837, 0.903), (1058, 1007, 0.952)])
def test_weak_scaling_efficiency(few, many, efficiency):
    assert scaling_efficiency(few, many) == pytest.approx(efficiency, abs=0.001)  # B05


@given(RANKS, st.floats(0, 1e12), st.sampled_from(links()))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks, size, name):
    parts = sum(seconds(part, size, ranks, link(name)) for part in ("reduce-scatter", "all-gather"))
    assert seconds("all-reduce", size, ranks, link(name)) == pytest.approx(parts)


@given(COLLECTIVE, RANKS, st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_bytes_never_take_less(collective, ranks, one, other):
    small, large = sorted((one, other))
    wire = link("ib-400")
    assert seconds(collective, small, ranks, wire) <= seconds(collective, large, ranks, wire)


@given(COLLECTIVE, st.integers(2, 512), st.integers(2, 512), st.floats(1, 1e12))
def test_more_ranks_never_take_less(collective, one, other, size):
    few, many = (seconds(collective, size, ranks, link("ib-400")) for ranks in sorted((one, other)))
    assert few <= many * (1 + 1e-12)


@given(COLLECTIVE, st.floats(0, 1e12))
def test_one_rank_sends_nothing(collective, size):
    assert seconds(collective, size, 1, link("nvlink4")) == 0


def test_a_faster_link_reaches_half_its_peak_later():
    assert half_size("all-reduce", 8, link("nvlink4")) > half_size("all-reduce", 8, link("nvlink3"))
    size = half_size("all-gather", 4, link("ib-200"))
    assert seconds("all-gather", size, 4, link("ib-200")) == pytest.approx(2 * messages("all-gather", 4) * 14e-6)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: seconds("allreduce", 1, 8, link("ib-400")), "did you mean all-reduce"),
    (lambda: seconds("all-reduce", 1, 0, link("ib-400")), "ranks is 0"),
    (lambda: seconds("all-reduce", -1, 8, link("ib-400")), "size is -1"),
    (lambda: half_size("all-reduce", 1, link("ib-400")), "one rank sends nothing"),
    (lambda: algorithm_bandwidth(1, 0), "seconds is 0"),
    (lambda: scaling_efficiency(math.nan, 1), "is nan"),
    (lambda: fit("all-reduce", 8, [1], [1]), "two sizes"),
    (lambda: fit("all-reduce", 8, [1, 1e9], [1, 1e-3]), "do not grow"),
])
def test_values_that_cannot_be_used(call, message):
    with pytest.raises(BadInput, match=message):
        call()
