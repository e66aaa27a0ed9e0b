import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.gpus import gpu
from gpucourse.catalog.links import Link
from gpucourse.catalog.models import shape
from gpucourse.catalog.shapes import gpt
from gpucourse.errors import BadInput
from gpucourse.predict.steptime import REACHED, USUAL, ceiling, step_time
from gpucourse.predict.traffic import data_parallel, tensor_parallel
from gpucourse.settings import DATA

LLAMA = shape("llama-3.1-8b")
PUBLISHED = [row for row in csv.DictReader((DATA / "published" / "throughput.csv").read_text().splitlines())
             if row["case"] in ("B01", "B08", "B10")]  # of B03 the recomputation is not stated

# mosaicml/llm-foundry scripts/train/benchmarking/README.md: layers, hidden, heads, seq, card, recompute, tokens/s a GPU
FOUNDRY = [
    (24, 2048, 16, 2048, "h100-sxm", "none", 45455), (24, 2048, 16, 8192, "h100-sxm", "none", 29157),
    (32, 2560, 20, 1024, "h100-sxm", "none", 27046), (32, 2560, 20, 16384, "h100-sxm", "none", 11152),
    (32, 4096, 32, 2048, "h100-sxm", "none", 10643), (32, 4096, 32, 8192, "h100-sxm", "full", 6935),
    (40, 5120, 40, 2048, "h100-sxm", "none", 4792), (40, 5120, 40, 4096, "h100-sxm", "full", 4717),
    (48, 7168, 56, 2048, "h100-sxm", "full", 2308), (32, 4096, 32, 2048, "a100-80", "none", 4641),
    (32, 4096, 32, 16384, "a100-80", "full", 2453), (40, 5120, 40, 1024, "a100-80", "full", 2330),
    (40, 5120, 40, 2048, "a100-80", "none", 2262), (48, 7168, 56, 1024, "a100-80", "full", 946),
    (80, 8192, 64, 2048, "a100-80", "full", 410),
]


def runs():
    for row in PUBLISHED:
        rate = float(row["tokens_per_second_per_gpu"])
        yield shape(row["model"]), row["gpu"], row["recompute"] or "none", int(row["seq"]), rate
    for layers, hidden, heads, seq, card, recompute, rate in FOUNDRY:
        yield gpt("foundry", layers, hidden, heads, vocab=50368, context=seq), card, recompute, seq, rate


def test_nine_in_ten_published_runs_lie_in_the_interval():
    inside = []
    for model, card, recompute, seq, rate in runs():
        low, high = step_time(model, 8192, seq, ceiling(gpu(card)), recompute).seconds
        inside.append(low <= 8192 / rate <= high)
    assert len(inside) == 28
    assert sum(inside) >= 0.9 * len(inside)


def test_the_interval_is_no_wider_than_what_it_stands_for():
    low, high = step_time(LLAMA, 8192, 8192, 1e15).seconds
    assert high / low == pytest.approx(REACHED[1] / REACHED[0]) == 2


def test_the_ceiling_is_the_measured_one_where_there_is_one():
    assert ceiling(gpu("h100-sxm")) == 795e12
    assert ceiling(gpu("h100-sxm"), "fp8") == pytest.approx(2 * 795e12, rel=0.001)
    assert ceiling(gpu("l4"), "bf16-autocast") == USUAL * 121e12
    assert ceiling(gpu("t4"), "fp16") == USUAL * 65e12


def test_traffic_waits_behind_what_it_cannot_hide_in():
    wire = Link("wire", 50e9, 0.0)
    gradients, activations = data_parallel(8_030_261_248, 8), tensor_parallel(LLAMA, 8192, 8)
    hidden = step_time(LLAMA, 10**6, 8192, 795e12, carried=[(t, wire) for t in gradients])
    assert hidden.waiting[0] == 0
    assert hidden.waiting[1] == pytest.approx(gradients[0].seconds(wire))
    never = step_time(LLAMA, 10**6, 8192, 795e12, carried=[(t, wire) for t in activations])
    assert never.waiting[0] == never.waiting[1] == pytest.approx(activations[0].seconds(wire))


@given(st.integers(1, 10**6), st.floats(0, 0.9), st.sampled_from(["none", "attention", "layer-2", "full"]))
def test_the_low_end_is_below_the_high_one_and_a_bubble_is_of_the_total(tokens, bubble, recompute):
    played = step_time(LLAMA, tokens, 8192, 795e12, recompute, bubble=bubble)
    low, high = played.seconds
    assert 0 < low < high
    assert played.bubble[1] / high == pytest.approx(bubble, abs=1e-12)


@given(st.sampled_from([1, 2, 4, 8]))
def test_a_share_of_the_model_takes_that_share_of_the_time(parts):
    whole, part = (step_time(LLAMA, 8192, 8192, 795e12, share=s).seconds for s in (1, 1 / parts))
    assert part == pytest.approx([t / parts for t in whole])


@pytest.mark.parametrize(("change", "message"), [
    ({"tokens": 0}, "tokens is 0"), ({"bubble": 1.0}, "bubble is 1.0"), ({"bubble": -0.1}, "bubble is -0.1"),
    ({"share": 2.0}, "share is 2.0"), ({"flops": 0}, "flops is 0"),
])
def test_values_that_cannot_be_used(change, message):
    with pytest.raises(BadInput, match=message):
        step_time(**{"shape": LLAMA, "tokens": 8192, "seq": 8192, "flops": 795e12} | change)
