"""Sharded weights in a pipeline: the closed form against a dry run that treats a stage as torch's pipeline does."""

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.evidence import STATES
from gpucourse.predict.layout_traffic import gathers, step_traffic
from gpucourse.predict.memory import memory_of_rank

SMALL = dict(vocab=1000, context=128)
SHAPES = {"llama": llama("llama", 6, 64, 4, 2, 176, **SMALL), "gpt": gpt("gpt", 6, 64, 4, **SMALL)}
STAGED = Layout(dp=2, shard="zero3", pp=3)


def slack(model, job) -> int:
    """The losses of the micro-batches; and that a recomputed tensor goes before a bias gets its gradient."""
    return 16 + 8 * job.accumulate + 4 * model.ffn * model.bias * (job.recompute != "none")


def compared(model, job, rank) -> None:
    computed, dry = memory_of_rank(model, job, rank), dryrun.memory(model, job, rank=rank)
    assert computed.instants == tuple(dry.at)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= slack(model, job), instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("rank", (0, 1, 2))
@pytest.mark.parametrize("layout", (STAGED, STAGED.but(reshard="never"), STAGED.but(schedule="gpipe", dp=3)), ids=str)
@pytest.mark.parametrize("name, job", (("llama", Job(2, 32, accumulate=4)),
                                       ("llama", Job(1, 16, "bf16-autocast", accumulate=4)),
                                       ("gpt", Job(2, 16, "bf16", recompute="full", accumulate=3))), ids=str)
def test_every_rank_equals_the_dry_run(name, job, layout, rank):
    compared(SHAPES[name], job.but(layout=layout), rank)


@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("job", (
    Job(2, 16, "fp16-autocast", accumulate=3, chunked_loss=3),
    Job(2, 16, "bf16-autocast", accumulate=3, lora=4),
    Job(2, 16, accumulate=1),
    Job(2, 16, "bf16-autocast", accumulate=3, layout=Layout(tp=2, sequence_parallel=True, vocab_parallel_loss=True)),
    Job(1, 16, accumulate=3, layout=Layout(tp=2))), ids=str)
def test_with_what_else_there_is(job, rank):
    compared(SHAPES["llama"], job.but(layout=job.layout.but(dp=2, shard="zero3", pp=2)), rank)


def test_gradients_wait_for_the_last_micro_batch_whatever_reduce_says():
    job = Job(1, 32, "bf16-autocast", accumulate=4, layout=STAGED)
    last = job.but(layout=STAGED.but(reduce="last"))
    assert predict.memory(SHAPES["llama"], job).lines == predict.memory(SHAPES["llama"], last).lines
    assert step_traffic(SHAPES["llama"], job) == step_traffic(SHAPES["llama"], last)
    assert "reduced after the last micro-batch" in str(job.layout)


def test_whole_gradients_in_fp32_are_what_a_stage_holds_most_of():
    """70B on 8 stages: gradients of all ten blocks wait in fp32 beside their gathered 16-bit weights."""
    model = shape("llama-3.1-70b")
    layout = Layout(dp=8, shard="zero3", pp=8)
    job = Job(1, 4096, "bf16-autocast", recompute="full", accumulate=16, layout=layout)
    lines = {line.name: line for line in memory_of_rank(model, job, 3).lines}
    elements = 10 * predict.parameters(model).block
    assert lines["gradients before reduction"].bytes == 4 * elements
    assert "perform_reduce_grad" in lines["gradients before reduction"].source
    assert lines["gathered weights"].bytes == 2 * elements


@pytest.mark.parametrize("schedule", ("1f1b", "gpipe"))
def test_a_forward_gives_back_what_a_backward_keeps(schedule):
    """One gather more than micro-batches, in either schedule; one in all where forward keeps them too."""
    for micro_batches in (1, 4, 9):
        job = Job(1, 32, accumulate=micro_batches, layout=STAGED.but(schedule=schedule))
        assert sum(gathers(job).values()) == micro_batches + 1
        assert gathers(job.but(layout=job.layout.but(reshard="never"))) == {"forward": 1, "backward": 0}
