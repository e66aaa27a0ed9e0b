import pytest

from gpucourse.catalog.gpus import gpu, gpus
from gpucourse.catalog.links import link, links
from gpucourse.errors import BadInput


def test_every_gpu_loads_with_its_sources():
    for name in gpus():
        card = gpu(name)
        assert card.sources["peak"] and card.sources["capacity"]
        assert bool(card.achievable_bf16) == ("achievable" in card.sources)
        assert all(rate > 0 for rate in card.tflops.values())
        assert card.capacity_gib < card.memory_gb * 1.001


def test_peaks_are_dense():
    # B08: 1,979 is the sparse bf16 figure of an H100, and its dense fp8 figure
    card = gpu("h100-sxm")
    assert card.peak("bf16") == 989e12
    assert card.peak("fp8") == 1979e12


@pytest.mark.parametrize("name", gpus())
def test_fp8_is_twice_bf16_where_a_card_has_both(name):
    rates = gpu(name).tflops
    if {"bf16", "fp8"} <= set(rates):
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.02)


def test_capacity_is_what_torch_reports_or_an_estimate_that_says_so():
    assert gpu("rtx-4090").capacity_gib == 23.6
    estimated = gpu("gb200")
    assert estimated.capacity_gib == pytest.approx(0.93 * 186)
    assert "estimated" in estimated.sources["capacity"]


def test_unknown_gpu_names_the_nearest():
    with pytest.raises(BadInput, match="GPU 'h100' is not known; did you mean h100-sxm"):
        gpu("h100")


def test_precision_that_a_card_lacks_is_refused_with_what_it_has():
    with pytest.raises(BadInput, match="t4: peak for precision 'bf16' is not known.*fp16"):
        gpu("t4").peak("bf16")


def test_links_by_name_and_written_out():
    for name in links():
        assert link(name).bandwidth > 0 and link(name).latency > 0
    assert link("ib-400").bandwidth == 50e9
    assert (link("25:10").bandwidth, link("25:10").latency) == (25e9, pytest.approx(10e-6))


@pytest.mark.parametrize("text", ["ib-4000", "0:5", "-1:5", "5:-1", "nan:1", "a:b", "1:2:3", ""])
def test_links_that_cannot_be_used_are_refused(text):
    with pytest.raises(BadInput, match="link"):
        link(text)
