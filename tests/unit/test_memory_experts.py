"""Mixtures of experts and latent attention in the closed form, by hand: no network has them yet."""

import pytest

from gpucourse import models, predict
from gpucourse.catalog import Job, Layout, llama, shape
from gpucourse.catalog.shapes import Experts, Latent
from gpucourse.errors import BadInput
from gpucourse.predict.step import Step

H, A, KV, D, F, V, L = 64, 4, 2, 16, 48, 1000, 3
MIXED = llama("mixed", L, H, A, KV, 176, vocab=V, context=256, experts=Experts(8, 2, F))
SHARED = MIXED.but(experts=Experts(8, 2, F, shared=1, dense_layers=1))
LATENT = MIXED.but(experts=None, latent=Latent(kv_rank=20, q_rank=24, rope_size=8, value_size=12), kv_heads=4)
EXPERT = 3 * H * F
COMMON = 2 * H + 2 * H * H + 2 * H * KV * D + 8 * H  # of a block: norms, attention, router
ENDS = 2 * V * H + H


@pytest.mark.parametrize("name", ("mixtral-8x7b", "qwen3-235b", "deepseek-v3"))
def test_published_models_to_the_element(name):
    ledger = predict.memory(shape(name), Job(1, 1024, "bf16"))
    assert ledger.states()["gradients"] == 2 * predict.parameters(shape(name)).total


@pytest.mark.parametrize("ep", (1, 2, 4, 8))
def test_experts_are_divided_among_ep_ranks_and_the_rest_is_not(ep):
    job = Job(1, 64, optimizer="momentum", layout=Layout(dp=8, ep=ep))
    count = ENDS + L * (COMMON + 8 // ep * EXPERT)
    assert predict.memory(MIXED, job).states() == dict(weights=4 * count + 8 * 256 * D, gradients=4 * count,
                                                       optimizer=4 * count)


@pytest.mark.parametrize("ep", (1, 2, 8))
def test_sharded_experts_are_shared_by_those_that_have_the_same(ep):
    job = Job(1, 64, "bf16", optimizer="momentum", layout=Layout(dp=8, shard="zero3", ep=ep))
    gradients = predict.memory(MIXED, job).states()["gradients"]
    # every row count is a multiple of 8, so that nothing is padded: each rank has an eighth, whatever ep is
    assert gradients == 2 * (ENDS + L * (COMMON + 8 * EXPERT)) // 8


def test_a_block_is_gathered_without_the_experts_of_other_ranks():
    whole, divided = (Step(MIXED, Job(1, 64, layout=Layout(dp=8, shard="zero3", ep=ep))).unit(0).gathered
                      for ep in (1, 4))
    assert whole == 4 * (COMMON + 8 * EXPERT) and divided == 4 * (COMMON + 2 * EXPERT)


def test_blocks_with_an_ordinary_mlp_are_counted_apart():
    step = Step(SHARED, Job(1, 64, layout=Layout(dp=8, shard="zero3", ep=8)))
    ordinary = COMMON - 8 * H + 3 * H * 176
    assert step.unit(0).gathered == 4 * ordinary
    assert step.unit(1).gathered == 4 * (COMMON + EXPERT + EXPERT)  # one of eight, and the shared one
    assert step.blocks[0].kept.at(step.dims) != step.blocks[1].kept.at(step.dims) == step.blocks[2].kept.at(step.dims)


def attention_kept(n: int, e: int) -> int:
    """Both norms' results, inputs and numbers (RMSNorm on a CPU), q, k, v, the result, the log-sum-exp; bytes."""
    return n * (2 * (e * H + 8 * H + 4) + e * (2 * H + 2 * KV * D) + 4 * A)


@pytest.mark.parametrize("precision, e", (("fp32", 4), ("bf16", 2)))
def test_saved_tensors_of_routed_tokens_by_hand(precision, e):
    n, rows = 64, 128  # each token visits two experts
    router = 4 * n * 8 + 4 * rows + 8 * rows  # scores; those chosen, and which
    sent, inside, weighted = e * rows * H + 8 * rows, 4 * e * rows * F, e * rows * H
    step = Step(MIXED, Job(1, n, precision))
    assert step.blocks[0].kept.at(step.dims) == attention_kept(n, e) + router + sent + inside + weighted
    # on several ranks what was received is sorted by expert once more; the buffers themselves are let go of
    apart = Step(MIXED, Job(1, n, precision, layout=Layout(dp=4, ep=4)))
    assert apart.blocks[0].kept.at(apart.dims) == step.blocks[0].kept.at(step.dims) + 8 * rows
    shared = Step(SHARED, Job(1, n, precision))
    assert shared.blocks[1].kept.at(shared.dims) == step.blocks[0].kept.at(step.dims) + 4 * e * n * F


@pytest.mark.parametrize("precision, e", (("fp32", 4), ("bf16", 2)))
def test_saved_tensors_of_latent_attention_by_hand(precision, e):
    n, key, value = 64, D + 8, 12
    norms = 2 * (e * H + 8 * H + 4)
    down = 8 * (24 + 20) + 8 + e * (24 + 20)  # two norms: input and scaled input in fp32, one number; their results
    down += 4 * 8 if e == 4 else 0  # in fp32 K's down-projection itself is the norm's input, with the rotated part
    given = 2 * e * A * key + e * A * (D + value)  # q and k put together, K and V as expanded
    mlp = 4 * e * 176
    step = Step(LATENT, Job(1, n, precision))
    assert step.blocks[0].kept.at(step.dims) == n * (norms + down + given + e * A * value + 4 * A + mlp)


def test_fewer_experts_a_rank_never_cost_more():
    job = Job(1, 2048, "bf16-autocast")
    peaks = [predict.memory(shape("mixtral-8x7b"), job.but(layout=Layout(dp=8, shard=shard, ep=ep))).peak
             for shard in ("none", "zero1", "zero3") for ep in (1, 2, 4, 8)]
    assert all(peaks[i:i + 4] == sorted(peaks[i:i + 4], reverse=True) for i in (0, 4, 8))


@pytest.mark.parametrize("layout", (Layout(tp=2), Layout(tp=2, sequence_parallel=True, dp=4, shard="zero3", ep=2),
                                    Layout(pp=3), Layout(cp=2, dp=2, ep=2)), ids=str)
@pytest.mark.parametrize("model", (SHARED, LATENT.but(experts=Experts(8, 2, F))), ids=("grouped", "latent"))
def test_other_axes_divide_what_is_left(model, layout):
    job = Job(2, 64, "bf16", accumulate=4)
    whole, divided = (predict.memory(model, job.but(layout=one)) for one in (Layout(), layout))
    assert divided.peak < whole.peak
    assert any("visits spread evenly" in line.source for line in divided.lines)


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="ep is 3; mixed has 8 experts"):
        predict.memory(MIXED, Job(1, 64, layout=Layout(dp=3, ep=3)))
    with pytest.raises(BadInput, match="tp is 4; odd has 50 expert ffn"):
        predict.memory(MIXED.but(name="odd", kv_heads=4, experts=Experts(8, 2, 50)), Job(1, 64, layout=Layout(tp=4)))
    with pytest.raises(BadInput, match="mixed has experts: no network here has that"):
        models.Transformer(MIXED)
