"""A pipeline's ranks, each with what its stages hold beside one another."""

import random

import pytest

from gpucourse import predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.catalog.stages import part, stages_of
from gpucourse.errors import BadInput
from gpucourse.models.training import network
from gpucourse.predict.memory import memory_of_rank
from gpucourse.predict.pipeline import covers, of_schedule, played, situations
from gpucourse.predict.pipelined import Stages

SMALL = dict(vocab=1000, context=128)
SHAPES = {"llama": llama("llama", 12, 64, 4, 2, 176, **SMALL), "gpt": gpt("gpt", 12, 64, 4, **SMALL)}
SCHEDULES = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1), ("zbv", 2),
             ("dualpipe", 2))


def test_the_rank_that_holds_most_is_found_without_asking_all():
    draw, compared = random.Random(20261130), 0
    while compared < 60:
        schedule, chunks = draw.choice(SCHEDULES)
        layout = Layout(dp=2, shard=draw.choice(("none", "zero2", "zero3")), pp=draw.choice((3, 4, 6)),
                        schedule=schedule, chunks=chunks)
        job = Job(1, draw.choice((16, 128)), draw.choice(("fp32", "bf16", "bf16-autocast")), layout=layout,
                  accumulate=draw.choice((1, 4, 12)), recompute=draw.choice(("none", "op", "full", "layer-2")))
        model = shape(draw.choice(("gpt2", "llama-3.1-8b", "deepseek-v3", "mixtral-8x7b")))
        try:
            ledger = predict.memory(model, job)
        except BadInput:
            continue
        ranks = [memory_of_rank(model, job, rank).peak for rank in range(layout.pp)]
        assert ledger.peak == max(ranks), (model.name, job, layout, ranks)
        compared += 1


@pytest.mark.parametrize("schedule, chunks", SCHEDULES)
@pytest.mark.parametrize("shard", ("none", "zero3"))
def test_what_is_left_out_is_covered_by_what_is_kept(schedule, chunks, shard):
    job = Job(accumulate=12, layout=Layout(dp=2, pp=4, schedule=schedule, chunks=chunks, shard=shard))
    kept = situations(job, 1)
    kinds = slice(0, 4 if shard == "zero3" else 3)
    for now in played(*of_schedule(job), 1):
        assert any(one[kinds] == now[kinds] and covers(one, now if shard == "zero3" else now._replace(last=()))
                   for one in kept)
    assert not any(one is not other and one[:4] == other[:4] and covers(one, other) for one in kept for other in kept)


@pytest.mark.parametrize("layout", (Layout(pp=4, schedule="zbv", chunks=2),
                                    Layout(pp=2, schedule="interleaved", chunks=3)), ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_those_of_a_rank_s_stages(name, layout):
    """A tied table is there twice where one rank has both the first and the last stage: they are modules apart."""
    model, job = SHAPES[name], Job(1, 16, accumulate=12, layout=layout)
    for rank in range(layout.pp):
        stages = [network(model, job, "meta", part(model.layers, layout.stages, stage))
                  for stage in stages_of(layout, rank)]
        line = next(line for line in memory_of_rank(model, job, rank).lines if line.name == "weights")
        assert line.bytes == 4 * sum(p.numel() for stage in stages for p in stage.parameters())


def test_stages_that_are_alike_are_worked_out_once():
    model = SHAPES["llama"]
    stages = Stages(model, Job(layout=Layout(pp=4)))
    assert stages.stage(1) is stages.stage(2)
    assert len({id(stages.stage(i)) for i in range(4)}) == 3
    uneven = Stages(model.but(layers=10), Job(recompute="layer-2", layout=Layout(pp=4)))  # of 3, 3, 2 and 2 layers
    assert len({id(uneven.stage(i)) for i in range(4)}) == 4
