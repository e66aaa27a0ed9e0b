import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.gpus import gpu
from gpucourse.catalog.models import models, shape
from gpucourse.catalog.shapes import gpt
from gpucourse.catalog.units import GiB
from gpucourse.errors import BadInput
from gpucourse.predict.inference_time import decode_seconds, prefill_seconds
from gpucourse.predict.kv_cache import admitted, blocks, concurrency, kv_bytes_per_token
from gpucourse.predict.parameters import parameters
from gpucourse.predict.serving import WEIGHT_BITS, plan, weight_bytes

LLAMA = shape("llama-3.1-8b")
QWEN = shape("qwen3-235b")
# stabilityai/stablelm-base-alpha-3b, as Lightning-AI/litgpt lays it out
STABLELM = gpt("stablelm-alpha-3b", 16, 4096, 32, vocab=50688, context=4096, positions="rope", tied=False)
# tiiuae/falcon-40b: parallel blocks with two norms and no biases in the linear layers
FALCON = gpt("falcon-40b", 60, 8192, 128, vocab=65024, context=2048, positions="rope", bias=False).but(kv_heads=8)


@pytest.mark.parametrize(("model", "reported_gb"), [
    (shape("phi-1.5"), 2.86), (STABLELM, 7.30), (shape("llama-2-7b"), 13.52), (shape("llama-2-13b"), 26.21),
])
def test_weights_of_a_server_as_reported(model, reported_gb):
    # A08: Lightning-AI/litgpt tutorials/resource-tables.md, A100 40 GB, bf16
    assert weight_bytes(model) / 1e9 == pytest.approx(reported_gb, rel=0.015)


@pytest.mark.parametrize(("model", "weights", "ran"), [
    (shape("phi-1.5"), "bf16", True), (STABLELM, "bf16", True), (shape("llama-2-7b"), "bf16", True),
    (shape("llama-2-13b"), "bf16", True), (shape("code-llama-34b"), "bf16", False), (FALCON, "bf16", False),
    (shape("llama-2-70b"), "bf16", False), (shape("llama-2-70b"), "nf4-double", True),
    (shape("code-llama-34b"), "nf4", True), (FALCON, "nf4", True),
])
def test_which_models_a_40_gb_card_holds(model, weights, ran):
    # A08: the rows that ran and those that ended out of memory
    assert (weight_bytes(model, weights) < gpu("a100-40").capacity) == ran


def test_kv_bytes_a_token():
    assert kv_bytes_per_token(LLAMA) == 131_072                         # A16
    assert kv_bytes_per_token(QWEN, tensor=4) == 48_128                 # A19: one kv head a GPU
    assert kv_bytes_per_token(shape("qwen2.5-7b")) == 57_344            # C27
    assert kv_bytes_per_token(shape("deepseek-v3")) == 61 * 576 * 2     # latent: one vector, not 128 heads
    assert kv_bytes_per_token(shape("llama-2-7b")) == 524_288           # every head its own K and V
    assert kv_bytes_per_token(LLAMA, "fp8") == 65_536
    assert kv_bytes_per_token(LLAMA, "int4") == 32_768


def test_kv_heads_are_repeated_when_there_are_more_gpus_than_heads():
    assert kv_bytes_per_token(QWEN, tensor=8) == kv_bytes_per_token(QWEN, tensor=4)
    assert kv_bytes_per_token(shape("deepseek-v3"), tensor=8) == kv_bytes_per_token(shape("deepseek-v3"))


@pytest.mark.parametrize(("kv_gib", "length", "count", "ratio", "runs"), [
    (3.81, 20_000, 1952, 1.56, True), (2.89, 29_000, 1478, 0.82, False),
])
def test_blocks_and_concurrency_of_a_server_log(kv_gib, length, count, ratio, runs):
    # A16: vllm-project/vllm#10517
    got = blocks(kv_gib * GiB, kv_bytes_per_token(LLAMA))
    assert got == pytest.approx(count, rel=0.003)
    assert concurrency(16 * got, length) == pytest.approx(ratio, abs=0.01)
    assert (concurrency(16 * got, length) >= 1) == runs
    assert (admitted(16 * got, length, 16) >= 1) == runs


def test_tokens_of_a_cache_with_one_head_a_gpu():
    # A19: vllm-project/vllm#21348: 8.11 GiB held 178,880 tokens; 367,404 tokens took 8.23 "GB" each for K and V
    each = kv_bytes_per_token(QWEN, tensor=4)
    assert 16 * blocks(8.11 * GiB, each) == pytest.approx(178_880, rel=0.015)
    assert 367_404 * each / 2 / GiB == pytest.approx(8.23, abs=0.005)
    assert 367_404 * each / 2 / 1e9 != pytest.approx(8.23, rel=0.05)


@pytest.mark.parametrize(("tokens", "length", "batch", "all_run"), [(2162, 128, 32, False), (12_463, 128, 32, True)])
def test_admission_says_which_batch_is_pre_empted(tokens, length, batch, all_run):
    assert (admitted(tokens, length) >= batch) == all_run  # C27: tenstorrent/tt-xla#5874


def test_admission_of_a_full_server():
    # C27: Tandemn-Labs/tandemn-system#11: 256 requests were let in, about 72 ran
    assert admitted(77_088, 1070) == 72
    assert 77_088 * kv_bytes_per_token(shape("qwen2.5-7b")) / GiB == pytest.approx(4.12, abs=0.005)


@given(st.integers(0, 10**7), st.integers(1, 10**5), st.integers(1, 256))
def test_whole_blocks_never_admit_more(tokens, length, block_size):
    assert admitted(tokens, length, block_size) <= admitted(tokens, length)


@given(st.sampled_from(models()), st.sampled_from(list(WEIGHT_BITS)))
def test_weights_lie_between_their_bits_and_bf16(model, weights):
    count = parameters(shape(model)).total
    low, high = sorted((WEIGHT_BITS[weights], 16))
    assert count * low / 8 <= weight_bytes(shape(model), weights) <= count * max(high, WEIGHT_BITS[weights]) / 8


def test_a_plan_adds_up():
    a = plan(LLAMA, gpu("rtx-4090"), context=8192)
    held = a.weight_bytes + a.reserve_bytes + a.kv_bytes
    assert held == pytest.approx(0.9 * gpu("rtx-4090").capacity)
    assert a.kv_tokens == 16 * a.kv_blocks
    assert a.max_concurrency == a.kv_tokens / 8192


def test_a_plan_answers_yes_no_and_uncertain():
    card = gpu("rtx-4090")
    assert plan(LLAMA, card, context=8192).fits == "yes"
    assert plan(LLAMA, card, context=8192, wanted=64).fits == "no"
    assert plan(LLAMA, card, context=29_000).fits == "uncertain"  # A16's card: it depends on the prefill's activations
    assert plan(LLAMA, card, context=29_000, reserve_gib=3.39).fits == "no"
    assert plan(LLAMA, card, context=20_000, reserve_gib=2.47).fits == "yes"


def test_a_model_larger_than_the_card_has_no_cache():
    a = plan(shape("llama-3.1-70b"), gpu("h100-sxm"), context=4096)
    assert (a.fits, a.kv_tokens, a.kv_bytes, a.max_concurrency) == ("no", 0, 0, 0)
    assert plan(shape("llama-3.1-70b"), gpu("h100-sxm"), context=4096, tensor=4).fits == "yes"


@given(st.integers(1, 1024), st.integers(1, 1024), st.integers(1, 100_000))
def test_a_larger_batch_never_decodes_faster_a_step_nor_slower_a_token(one, other, context):
    few, many = sorted((one, other))
    short, long = (decode_seconds(LLAMA, batch, context, 795e12, 3.35e12) for batch in (few, many))
    assert short <= long * (1 + 1e-12)
    assert long / many <= short / few * (1 + 1e-12)


def test_decoding_one_request_reads_the_weights_once():
    seconds = decode_seconds(LLAMA, 1, 1, 989e12, 3.35e12)
    assert seconds == pytest.approx((weight_bytes(LLAMA) + 131_072) / 3.35e12)


def test_a_mixture_of_experts_reads_what_its_batch_visits():
    mixtral = shape("mixtral-8x7b")
    alone = decode_seconds(mixtral, 1, 1, 989e12, 3.35e12) - kv_bytes_per_token(mixtral) / 3.35e12
    assert alone == pytest.approx(2 * parameters(mixtral).active / 3.35e12)
    crowd = decode_seconds(mixtral, 128, 1, 1e30, 3.35e12) - 128 * kv_bytes_per_token(mixtral) / 3.35e12
    assert crowd == pytest.approx(2 * parameters(mixtral).total / 3.35e12)


def test_prefill_is_a_third_of_training():
    llama = parameters(LLAMA)
    flops = 2 * (llama.total - llama.embedding) + 2 * 32 * 4096 * 8192
    assert prefill_seconds(LLAMA, 8192, 989e12) == pytest.approx(8192 * flops / 989e12)
    assert prefill_seconds(LLAMA, 8192, 989e12, tensor=8) == pytest.approx(8192 * flops / 989e12 / 8)


@pytest.mark.parametrize(("change", "message"), [
    ({"context": 0}, "context is 0"),
    ({"context": 200_000}, "takes at most 131072"),
    ({"wanted": 0}, "concurrency is 0"),
    ({"tensor": 3}, "tensor parallel is 3.*use one of 1, 2, 4, 8, 16, 32"),
    ({"kv_dtype": "fp4"}, "kv-dtype 'fp4' is not known"),
    ({"weights": "int3"}, "weights 'int3' is not known"),
    ({"utilization": 1.1}, "utilization is 1.1"),
    ({"utilization": 0}, "utilization is 0"),
    ({"utilization": math.nan}, "utilization is nan"),
    ({"block_size": 0}, "block-size is 0"),
    ({"reserve_gib": -1.0}, "reserve-gib is -1"),
])
def test_values_that_cannot_be_used(change, message):
    with pytest.raises(BadInput, match=message):
        plan(LLAMA, gpu("rtx-4090"), **{"context": 4096} | change)
