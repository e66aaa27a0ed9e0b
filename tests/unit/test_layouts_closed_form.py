"""The closed form of layouts over ranks: against the dry run of one rank, and by what must not depend on the model."""

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.errors import BadInput
from gpucourse.evidence import STATES
from gpucourse.predict.memory import memory_of_rank
from gpucourse.predict.step import Step

GiB = 2**30
FSDP = Layout(dp=4, shard="zero3")
UNEVEN = Layout(dp=3, shard="zero3", reshard="never")  # 3 divides no tensor of these shapes: each is padded
SHAPES = {
    "llama": llama("llama", 4, 64, 4, 2, 176, vocab=1000, context=128),
    "gpt": gpt("gpt", 4, 64, 4, vocab=1000, context=128),
    "wide": llama("wide", 4, 64, 4, 2, 176, vocab=1000, context=128, head_dim=24, qk_norm=True),
}
SCALARS = 16  # the loss, its gradient, its running sum: left out


def slack(model, job) -> int:
    """Bytes that the closed form may be off: a recomputed tensor goes before a bias gets its gradient."""
    biases = 40 * model.hidden + 4 * model.ffn  # autocast's 16-bit ones: cast and freed, not modelled
    casts = job.precision == "bf16-autocast" and job.layout.shard != "zero3"
    return SCALARS + model.bias * (biases if casts else 4 * model.ffn * (job.recompute != "none"))


@pytest.mark.parametrize("layout", (FSDP, UNEVEN), ids=str)
@pytest.mark.parametrize("job", (Job(2, 64), Job(1, 4, precision="bf16-autocast"),
                                 Job(1, 16, precision="bf16-autocast"),
                                 Job(1, 16, precision="bf16", recompute="full", accumulate=2),
                                 Job(2, 16, precision="bf16-autocast", recompute="op", chunked_loss=3)), ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_instant_of_sharded_weights_equals_the_dry_run(name, job, layout):
    job = job.but(layout=layout)
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= slack(SHAPES[name], job), instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("layout", (Layout(tp=2), Layout(tp=2, vocab_parallel_loss=True),
                                    Layout(dp=2, shard="zero3", tp=2)), ids=str)
@pytest.mark.parametrize("job", (Job(2, 64), Job(2, 32, precision="bf16-autocast", recompute="full"),
                                 Job(1, 32, precision="bf16", accumulate=2), Job(1, 32, precision="bf16", lora=4)),
                         ids=str)
@pytest.mark.parametrize("parts", (1, 3))
def test_every_instant_of_a_divided_loss_in_parts_equals_the_dry_run(parts, job, layout):
    job = job.but(layout=layout, chunked_loss=parts)
    computed, dry = predict.memory(SHAPES["llama"], job), dryrun.memory(SHAPES["llama"], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS + 8 * parts, instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


# Held for backward by a Llama block, bytes a token: found by dry runs before this arithmetic was written.
HELD = {
    ("fp32", False): lambda h, k, f, a, t: 24 * h + 8 + (8 * h + 8 * k + 16 * f + 4 * a) / t,
    ("fp32", True): lambda h, k, f, a, t: 8 * h + (24 * h + 8 * k + 16 * f + 4 * a + 8) / t,
    ("bf16", False): lambda h, k, f, a, t: 20 * h + 8 + (4 * h + 4 * k + 8 * f + 4 * a) / t,
    ("bf16", True): lambda h, k, f, a, t: 4 * h + (20 * h + 4 * k + 8 * f + 4 * a + 8) / t,
    ("bf16-autocast", False): lambda h, k, f, a, t: 26 * h + 8 + (4 * h + 4 * k + 8 * f + 4 * a) / t,
    ("bf16-autocast", True): lambda h, k, f, a, t: 10 * h + (20 * h + 4 * k + 8 * f + 4 * a + 8) / t,
}


@pytest.mark.parametrize("precision, sequence_parallel, tp",
                         [(*case, tp) for case in HELD for tp in (1, 2, 4, 8) if tp > 1 or not case[1]])
def test_held_bytes_of_a_tensor_parallel_block(precision, sequence_parallel, tp):
    model = llama("llama", 32, 4096, 32, 8, 14336, vocab=128256)
    layout = Layout(tp=tp, sequence_parallel=sequence_parallel)
    job = Job(2, 4096, precision=precision, layout=layout)
    block = Step(model, job).blocks[0]
    h, k, f, n = model.hidden, model.kv_hidden, model.ffn, job.tokens
    weights = 2 * (2 * h * h + 2 * h * k + 3 * h * f) // tp if precision == "bf16-autocast" else 0
    held = n * HELD[precision, sequence_parallel](h, k, f, model.heads, tp) + weights
    assert block.kept.at(Step(model, job).dims) == held


@pytest.mark.parametrize("layout", (Layout(tp=2), Layout(tp=2, sequence_parallel=True, vocab_parallel_loss=True),
                                    Layout(dp=2, shard="zero3", tp=2, sequence_parallel=True)), ids=str)
@pytest.mark.parametrize("job", (Job(2, 64, precision="bf16-autocast"), Job(1, 8)), ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_instant_of_tensor_parallelism_equals_the_dry_run(name, job, layout):
    job = job.but(layout=layout)
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= slack(SHAPES[name], job), instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("changes, says", (
    (dict(layout=Layout(tp=3)), "tp is 3; llama has 4 heads: use a number that divides them"),
    (dict(layout=Layout(tp=4)), "tp is 4; llama has 2 kv heads"),
    (dict(seq=63, layout=Layout(tp=2, sequence_parallel=True)), "tp with sequence-parallel is 2; the job has 63"),
    (dict(layout=Layout(pp=5)), "pp 5 × chunks 1 is 5 stages; llama has 4 layers: use at most as many stages"),
    (dict(layout=Layout(dp=2, ep=2)), "ep is 2; llama has 0 experts"),
))
def test_what_does_not_divide_is_refused(changes, says):
    with pytest.raises(BadInput, match=says):
        predict.memory(SHAPES["llama"], Job(2, 64).but(**changes))


@pytest.mark.parametrize("layout, says", (
    (dict(dp=0), "dp is 0; it must be a whole number of at least 1"),
    (dict(tp=2.0), "tp is 2.0; it must be a whole number"),
    (dict(dp=2, shard="zero4"), "shard 'zero4' is not known; did you mean zero3"),
    (dict(shard="zero3"), "shard is zero3 with dp 1: there is nobody to share with"),
    (dict(sequence_parallel=True), "sequence-parallel is set with tp 1"),
    (dict(pp=2, schedule="1fb"), "schedule '1fb' is not known; did you mean 1f1b"),
    (dict(chunks=2), "chunks is 2 with pp 1"),
    (dict(dp=4, ep=3), "ep is 3; experts are divided among data-parallel ranks: use a divisor of dp 4"),
))
def test_a_layout_that_cannot_be_is_refused(layout, says):
    with pytest.raises(BadInput, match=says):
        Layout(**layout)


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


@pytest.mark.parametrize("shard", ("none", "zero1"))
def test_ddp_buckets_cost_the_gradients_once_more(shard):
    model, job = SHAPES["gpt"], Job(2, 64)
    view, copy = (predict.memory(model, job.but(layout=Layout(dp=2, shard=shard, bucket_view=view)))
                  for view in (True, False))
    sizes = {line.name: line.bytes for line in copy.lines}
    assert sizes["DDP's buckets"] == 4 * predict.parameters(model).total
    moments = {"none": 8, "zero1": 8 / 2}[shard]
    alone, elements = predict.memory(model, job), predict.parameters(model).total
    assert view.total("forward") == pytest.approx(alone.total("forward") + (4 + moments - 8) * elements, abs=64)


@pytest.mark.parametrize("rank", (0, 1, 2))
@pytest.mark.parametrize("layout", (Layout(pp=3), Layout(pp=3, schedule="gpipe")), ids=str)
def test_every_rank_of_a_pipeline_equals_the_dry_run(layout, rank):
    for job in (Job(2, 64, accumulate=4, layout=layout), Job(1, 32, precision="bf16", accumulate=5, layout=layout)):
        computed, dry = memory_of_rank(SHAPES["llama"], job, rank), dryrun.memory(SHAPES["llama"], job, rank=rank)
        scalars = SCALARS + 8 * job.accumulate  # each micro-batch that is in flight has a loss of its own
        for instant in dry.at:
            assert abs(computed.total(instant) - dry.total(instant)) <= scalars, instant
        assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


def test_a_pipeline_is_as_large_as_its_largest_rank():
    job = Job(2, 64, accumulate=8, layout=Layout(pp=4))
    ranks = [memory_of_rank(SHAPES["llama"], job, rank).peak for rank in range(4)]
    ledger = predict.memory(SHAPES["llama"], job)
    assert ledger.peak == max(ranks) and ledger.title.endswith(f"holds most: {ranks.index(max(ranks))}")


def test_one_rank_along_every_axis_is_one_device():
    model, job = SHAPES["llama"], Job(2, 64, accumulate=2)
    ones = job.but(layout=Layout(dp=1, tp=1, pp=1, cp=1, ep=1, schedule="gpipe"))
    assert str(predict.memory(model, ones)) == str(predict.memory(model, job))


def test_what_has_no_dry_run_says_so():
    with pytest.raises(BadInput, match="cp has no dry run; use predict.memory"):
        dryrun.memory(SHAPES["llama"], Job(1, 16, layout=Layout(cp=2)))


@pytest.mark.parametrize("schedule", ["zbv", "dualpipe", "interleaved"])
def test_a_schedule_of_several_stages_a_rank_is_refused_with_one(schedule):
    with pytest.raises(BadInput, match=f"chunks is 1; {schedule} works with 2"):
        predict.memory(SHAPES["llama"], Job(seq=64, accumulate=8, layout=Layout(pp=2, schedule=schedule)))
