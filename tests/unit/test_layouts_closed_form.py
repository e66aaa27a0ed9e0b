"""The closed form of layouts over ranks: against the dry run of one rank, and by what must not depend on the model."""

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.evidence import STATES

GiB = 2**30
FSDP = Layout(dp=4, shard="zero3")
UNEVEN = Layout(dp=3, shard="zero3", reshard="never")  # 3 divides no tensor of these shapes: each is padded
SHAPES = {
    "llama": llama("llama", 4, 64, 4, 2, 176, vocab=1000, context=128),
    "gpt": gpt("gpt", 4, 64, 4, vocab=1000, context=128),
}
SCALARS = 16  # the loss, its gradient, its running sum: left out


def slack(model, job) -> int:
    """Bytes that the closed form may be off: a recomputed tensor goes before a bias gets its gradient."""
    return SCALARS + 4 * model.ffn * (model.bias and job.recompute != "none")


@pytest.mark.parametrize("layout", (FSDP, UNEVEN), ids=str)
@pytest.mark.parametrize("job", (Job(2, 64), Job(1, 4, precision="bf16-autocast"),
                                 Job(1, 16, precision="bf16", recompute="full", accumulate=2)), ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_instant_of_sharded_weights_equals_the_dry_run(name, job, layout):
    job = job.but(layout=layout)
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= slack(SHAPES[name], job), instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


def test_deep_models_are_extrapolated_with_their_middle_blocks():
    model, job = SHAPES["llama"].but(layers=9), Job(1, 4, layout=FSDP)
    dry = dryrun.memory(model, job)
    assert dry.at == dryrun.memory(model, job, whole=True).at
    assert predict.memory(model, job).peak_at == dry.peak_at == "middle blocks"


def test_sharding_divides_states_only():
    """A02: from 8 to 128 GPUs exactly 16 bytes × N × (1/8 − 1/128) go, whatever the activations are."""
    model, job = shape("llama-3.1-8b"), Job(2, 8192, precision="bf16-autocast", recompute="full")
    few, many = (predict.memory(model, job.but(layout=Layout(dp=n, shard="zero3"))) for n in (8, 128))
    drop = (sum(few.states().values()) - sum(many.states().values())) / GiB
    assert drop == pytest.approx(16 * 8_030_261_248 * (1 / 8 - 1 / 128) / GiB, rel=1e-3)


def test_zero_1_divides_the_moments_and_nothing_else():
    """A14: GPT-2 in bf16, moments in fp32: 474 MiB each on one process, a half on two, an eighth on eight."""
    model, job = shape("gpt2"), Job(1, 1024, precision="bf16-master")
    alone = predict.memory(model, job)
    for ranks in (2, 8):
        ledger = predict.memory(model, job.but(layout=Layout(dp=ranks, shard="zero1")))
        sizes, whole = ({line.name: line.bytes for line in one.lines} for one in (ledger, alone))
        assert sizes["optimizer moments"] == pytest.approx(whole["optimizer moments"] / ranks, abs=64)
        assert sizes["weights"] == whole["weights"] and sizes["gradients"] == whole["gradients"]


@pytest.mark.parametrize("shard, bytes_a_parameter", (("none", 16), ("zero1", 2 + 2 + 12 / 8), ("zero2", 2 + 14 / 8),
                                                      ("zero3", 16 / 8)))
def test_resident_states_of_the_zero_stages(shard, bytes_a_parameter):
    """A10, by parameter: 13B on 8 ranks, bf16 with an fp32 master; ZeRO-2 keeps 2 + 14/8, ZeRO-3 16/8."""
    model = shape("llama-2-13b")
    job = Job(1, 512, precision="bf16-master", recompute="full", layout=Layout(dp=8, shard=shard))
    states = sum(predict.memory(model, job).states().values())
    assert states / predict.parameters(model).total == pytest.approx(bytes_a_parameter, rel=2e-3)


def test_ddp_buckets_cost_the_gradients_once_more():
    model, job = SHAPES["gpt"], Job(2, 64)
    view, copy = (predict.memory(model, job.but(layout=Layout(dp=2, bucket_view=view))) for view in (True, False))
    sizes = {line.name: line.bytes for line in copy.lines}
    assert sizes["DDP's buckets"] == 4 * predict.parameters(model).total
    assert view.total("forward") - predict.memory(model, job).total("forward") == sizes["DDP's buckets"]
