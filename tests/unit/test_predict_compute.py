import csv
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.gpus import gpu
from gpucourse.catalog.models import models, shape
from gpucourse.errors import BadInput
from gpucourse.predict.compute import (
    CONVENTIONS,
    attainable,
    flops_per_token,
    hardware_flops_per_token,
    ridge,
)
from gpucourse.predict.steps import accumulation, break_even
from gpucourse.predict.utilization import mfu
from gpucourse.settings import DATA

PUBLISHED = list(csv.DictReader((DATA / "published" / "throughput.csv").read_text().splitlines()))
ONE_OF_EACH = st.sampled_from(models())
RECOMPUTES = st.sampled_from(["none", "op", "attention", "layer-2", "layer-3", "full"])


def rows(*cases):
    return [pytest.param(row, id=f"{row['case']} {row['model']} {row['gpu']} {row['tokens_per_second_per_gpu']}")
            for row in PUBLISHED if row["case"] in cases]


def computed(row):
    return mfu(shape(row["model"]), gpu(row["gpu"]), float(row["tokens_per_second_per_gpu"]), int(row["seq"]),
               precision=row["precision"], convention=row["convention"])


@pytest.mark.parametrize("row", rows("B01", "B08"))
def test_mfu_as_published_to_a_tenth_of_a_point(row):
    assert 100 * computed(row).mfu == pytest.approx(float(row["mfu_percent"]), abs=0.1)


@pytest.mark.parametrize("row", rows("B10"))
def test_mfu_of_the_gpt2_runs_to_half_a_point(row):
    assert 100 * computed(row).mfu == pytest.approx(float(row["mfu_percent"]), abs=0.5)


@pytest.mark.parametrize("row", rows("B03"))
def test_tflops_as_published_to_two_in_a_thousand(row):
    assert computed(row).tflops_per_gpu == pytest.approx(float(row["tflops_per_gpu"]), rel=0.002)


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row["accumulate"]])
def test_accumulation_follows_from_the_batch_and_the_layout(row):
    data_parallel = int(row["gpus"]) // (int(row["tensor"]) * int(row["pipeline"]) * int(row["context"]))
    assert accumulation(int(row["global_batch"]), int(row["micro_batch"]), data_parallel) == int(row["accumulate"])


def test_a_sparse_peak_halves_the_figure():
    # B08: the asker divided by 1,979, the sparse bf16 peak; the catalogue holds that as the fp8 one
    llama, h100 = shape("llama-2-7b"), gpu("h100-sxm")
    assert mfu(llama, h100, 9600, 4096, precision="fp8").mfu == pytest.approx(0.227, abs=0.001)


def test_over_the_peak_names_the_card_that_fits():
    # B09: 104 % on an H100, against the A100's peak that was written into the script
    gpt2, a100 = shape("gpt2"), gpu("a100-80")
    rate = 1.04 * 312e12 / flops_per_token(gpt2, 1024).total
    wrong = mfu(gpt2, a100, rate, 1024)
    assert wrong.mfu == pytest.approx(1.04)
    (warning,) = wrong.warnings
    assert "104%" in warning and "32.8% of h100-sxm's" in warning and "several GPUs" in warning
    right = mfu(gpt2, gpu("h100-sxm"), rate, 1024)
    assert right.mfu == pytest.approx(0.328, abs=0.0005)
    assert right.warnings == ()


def test_an_fp8_run_over_the_bf16_peak_is_told_so():
    # B03: 999 tokens/s a GPU, 2,522 TFLOP/s
    run = shape("llama-3.1-405b"), gpu("gb300"), 999, 8192
    (warning,) = mfu(*run, precision="bf16", convention="causal").warnings
    assert "an fp8 run (50.4% of gb300's fp8 peak)" in warning
    assert mfu(*run, precision="fp8", convention="causal").warnings == ()


def test_recomputing_can_pass_the_peak_where_the_model_does_not():
    gpt2, a100 = shape("gpt2"), gpu("a100-80")
    rate = 0.9 * 312e12 / flops_per_token(gpt2, 1024).total
    (warning,) = mfu(gpt2, a100, rate, 1024, recompute="full").warnings
    assert warning.startswith("HFU is 120%")


def test_gpus_share_the_tokens():
    llama, card = shape("llama-3.1-8b"), gpu("a100-80")
    assert mfu(llama, card, 8 * 2904, 8192, number=8) == mfu(llama, card, 2904, 8192)


def test_full_recompute_makes_eight_of_six():
    llama = shape("llama-3.1-8b")
    model, full = flops_per_token(llama, 8192), hardware_flops_per_token(llama, 8192, recompute="full")
    assert full.linear == pytest.approx(8 * 8_030_261_248)
    assert full.attention == pytest.approx(16 * 32 * 4096 * 8192)
    assert model.linear == 6 * 8_030_261_248


def test_latent_attention_counts_its_own_head_sizes():
    deepseek = shape("deepseek-v3")
    assert flops_per_token(deepseek, 4096).attention == 6 * 61 * 128 * (192 + 128) * 4096


@given(ONE_OF_EACH, st.integers(1, 10**6), st.sampled_from(list(CONVENTIONS)), RECOMPUTES)
def test_hardware_never_does_less_than_the_model_asks(model, seq, convention, recompute):
    asked = flops_per_token(shape(model), seq, convention)
    done = hardware_flops_per_token(shape(model), seq, convention, recompute)
    full = hardware_flops_per_token(shape(model), seq, convention, "full")
    assert asked.linear <= done.linear <= full.linear * (1 + 1e-12)
    assert asked.attention <= done.attention <= full.attention * (1 + 1e-12)


@given(ONE_OF_EACH, st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_longer_sequence_never_costs_less_a_token(model, one, other):
    short, long = sorted((one, other))
    assert flops_per_token(shape(model), short).total <= flops_per_token(shape(model), long).total


@given(ONE_OF_EACH, st.integers(1, 10**6))
def test_the_conventions_are_ordered(model, seq):
    palm, dense, causal = (flops_per_token(shape(model), seq, name).total for name in CONVENTIONS)
    assert palm >= dense >= causal


def test_the_roofline_bends_at_the_ridge():
    peak, bandwidth = 989e12, 3.35e12
    assert attainable(1, peak, bandwidth) == 3.35e12
    assert attainable(10_000, peak, bandwidth) == peak
    assert attainable(ridge(peak, bandwidth), peak, bandwidth) == pytest.approx(peak)


def test_when_compiling_pays():
    # B16: stas00/ml-engineering training/performance
    assert break_even(22, 0.0488, 0.0126) == pytest.approx(600, rel=0.05)
    assert break_even(22, 0.5907, 0.6302) == math.inf


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "9600", None])
def test_a_throughput_that_is_none_is_refused(value):
    with pytest.raises(BadInput, match="tokens-per-second is"):
        mfu(shape("gpt2"), gpu("a100-80"), value, 1024)


@pytest.mark.parametrize(("change", "message"), [
    ({"seq": 0}, "seq is 0"),
    ({"number": 0}, "gpus is 0"),
    ({"precision": "fp4"}, "precision 'fp4' is not known"),
    ({"convention": "plam"}, "did you mean palm"),
    ({"recompute": "layer-0"}, "recompute 'layer-0' is not known"),
    ({"recompute": "ful"}, "did you mean full"),
])
def test_other_values_that_cannot_be_used(change, message):
    with pytest.raises(BadInput, match=message):
        mfu(shape("gpt2"), gpu("a100-80"), 1000, **{"seq": 1024} | change)


def test_batches_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="global batch 100 is not a multiple of 48 = 6 a micro-batch × 8 ranks"):
        accumulation(100, 6, 8)
