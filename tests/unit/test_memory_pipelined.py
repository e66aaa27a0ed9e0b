"""A pipeline's ranks, each with what its stages hold beside one another."""

import random

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.catalog.halves import in_halves, refusal
from gpucourse.catalog.stages import part, stages_of
from gpucourse.dryrun.ledger import step_ledger
from gpucourse.errors import BadInput
from gpucourse.evidence import STATES, WEIGHTS
from gpucourse.models.training import network
from gpucourse.predict.memory import memory_of_rank
from gpucourse.predict.pipeline import covers, held, of_schedule, played, situations
from gpucourse.predict.pipelined import Stages
from gpucourse.predict.schedules import SCHEDULES as SCHEDULES_BY_NAME
from gpucourse.predict.schedules import schedule
from gpucourse.predict.step import Step

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
    for kinds in ((), (0,) * chunks):  # no stages are alike; all are
        kept = [held(now, kinds) for now in situations(job, 1, kinds)]
        for now in played(*of_schedule(job), 1, job.layout.staged):
            kind, amounts = held(now, kinds)
            assert any(one == kind and covers(more, amounts) for one, more in kept)
        assert not any(one is not other and one[0] == other[0] and covers(one[1], other[1])
                       for one in kept for other in kept)


def test_what_each_stage_holds_is_followed_through_a_schedule():
    """One micro-batch after another through rank 1 of ZB-H1 on two ranks: forward, half, forward, half, half …"""
    now = played("zero-bubble", 2, 3, 1, 1, False)
    assert [(one.kind, *one.beside[0][1:3]) for one in now] == [
        ("F", 0, 0), ("I", 0, 0), ("F", 0, 1), ("I", 0, 1), ("W", 0, 1), ("F", 0, 1), ("I", 0, 1), ("W", 0, 1),
        ("W", 0, 0)]
    assert {one.kind for one in played("zero-bubble", 2, 3, 1, 0, False)} == {"F", "B"}  # it has no half for an input


def test_of_more_than_three_stages_those_are_gathered_whose_turn_comes_soon():
    first = played("interleaved", 2, 4, 4, 0, True)[0]
    assert [one.gathered for one in first.beside] == ["A", "A", "A", ""]
    assert {one.gathered for now in played("interleaved", 2, 4, 4, 0, False) for one in now.beside} == {""}


def compared(model, job) -> None:
    for rank in range(job.layout.pp):
        computed, dry = memory_of_rank(model, job, rank), dryrun.memory(model, job, rank=rank)
        assert computed.instants == tuple(dry.at)
        for instant in dry.at:
            off = computed.total(instant) - dry.total(instant)
            assert abs(off) <= 16 + 8 * job.accumulate, (rank, instant)  # scalars: each micro-batch's loss
        assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("schedule, chunks", SCHEDULES[2:])
@pytest.mark.parametrize("precision, name", (("fp32", "llama"), ("fp32", "gpt"), ("bf16-autocast", "llama")))
def test_every_instant_of_every_schedule_equals_the_dry_run(schedule, chunks, precision, name):
    """The dry run calls torch.distributed.pipelining's own halves of a backward."""
    compared(SHAPES[name], Job(2, 32, precision, accumulate=4, layout=Layout(pp=2, schedule=schedule, chunks=chunks)))


@pytest.mark.parametrize("schedule, chunks, reshard", (
    ("interleaved", 2, "always"), ("interleaved", 4, "always"), ("interleaved", 4, "never"),
    ("zero-bubble", 1, "never"), ("zbv", 2, "never"), ("dualpipe", 2, "never")))
def test_every_instant_of_sharded_weights_equals_the_dry_run(schedule, chunks, reshard):
    """Weights are gathered ahead of a stage's turn and given back after, by torch's own list of actions."""
    layout = Layout(dp=2, shard="zero3", reshard=reshard, pp=2, schedule=schedule, chunks=chunks)
    compared(SHAPES["llama"].but(layers=8), Job(1, 16, accumulate=4, layout=layout))


@pytest.mark.parametrize("job", (Job(2, 32, accumulate=4, recompute="attention"),
                                 Job(2, 32, "bf16", accumulate=4, lora=4),
                                 Job(2, 32, "bf16", accumulate=4, layout=Layout(tp=2))), ids=str)
def test_every_instant_of_halves_with_what_goes_with_them(job):
    compared(SHAPES["llama"], job.but(layout=job.layout.but(pp=2, schedule="zero-bubble")))


def test_which_schedules_halve_a_backward():
    for name, family in SCHEDULES_BY_NAME.items():
        kinds = {kind for row in schedule(name, 2, 8, family.chunks[0]).actions for kind, _, _ in row}
        assert ("I" in kinds) == in_halves(Job(layout=Layout(pp=2, schedule=name)))


def test_selective_checkpointing_allows_one_backward():
    """Why that is refused: torch says so."""
    job = Job(1, 16, accumulate=4, recompute="op", layout=Layout(pp=2, schedule="zero-bubble"))
    with pytest.raises(RuntimeError, match="backward an extra time"):
        step_ledger(SHAPES["llama"], job, rank=1)


def test_a_recomputed_block_runs_again_for_each_of_its_weights():
    """Why that is refused: what was to be saved is held several times over."""
    job = Job(1, 16, accumulate=4, layout=Layout(pp=2, schedule="zero-bubble"))
    model = SHAPES["llama"].but(layers=4)
    none, full = (step_ledger(model, job.but(recompute=name), rank=1).at[WEIGHTS] for name in ("none", "full"))
    more = sum(full.values()) - sum(none.values())
    block = Step(model, job).blocks[0].kept.at(Step(model, job).dims)
    assert more > 4 * block  # of two blocks


def test_a_backward_in_halves_holds_more_than_a_whole_one():
    """What the weights' half begins from: a gradient for each product and norm, beside all that forward kept."""
    model, job = SHAPES["llama"], Job(2, 32, accumulate=4, layout=Layout(pp=2))
    whole, halves = (memory_of_rank(model, job.but(layout=Layout(pp=2, schedule=name)), 1)
                     for name in ("1f1b", "zero-bubble"))
    lines = {line.name: line for line in halves.lines}
    n, h, k, f, V = job.tokens, model.hidden, model.kv_hidden, model.ffn, model.vocab
    # q, out, up to the stream; both norms, the new stream: five of h; in the last stage also its norm, and the logits
    owed, loss = lines["owed to the weights' half"].at["first block"], 4
    assert owed == 4 * n * (5 * (5 * h + 2 * k + 2 * f) + h + V) - loss
    assert halves.peak > whole.peak


@pytest.mark.parametrize("changes, says", (
    (dict(layout=Layout(dp=2, shard="zero3", pp=2, schedule="zbv", chunks=2)), "reshard is always with zbv: .* never"),
    (dict(recompute="full"), "recompute is full with zero-bubble: .* use none or attention"),
    (dict(recompute="op"), "recompute is op with zero-bubble: selective checkpointing allows one backward"),
    (dict(recompute="layer-2"), "recompute is layer-2 with zero-bubble"),
    (dict(chunked_loss=4), "chunked-loss is 4 with zero-bubble: .* leave it out, or take 1f1b"),
))
def test_what_does_not_go_with_halves_is_refused(changes, says):
    job = Job(1, 16, accumulate=8, layout=Layout(pp=2, schedule="zero-bubble")).but(**changes)
    with pytest.raises(BadInput, match=says):
        predict.memory(SHAPES["llama"], job)
    assert refusal(job) and not refusal(job.but(layout=Layout(pp=2)))


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


@pytest.mark.parametrize("layout", (Layout(pp=4), Layout(pp=7), Layout(pp=4, schedule="interleaved", chunks=3),
                                    Layout(pp=4, schedule="dualpipe", chunks=2)), ids=str)
@pytest.mark.parametrize("name", ("deepseek-v3", "mixtral-8x7b"))
def test_the_ranks_together_have_the_whole_model(name, layout):
    """Also where the first layers have an ordinary MLP: those are on the ranks that have the first layers."""
    model, job = shape(name), Job(1, 16, "bf16", accumulate=28, layout=layout)
    weights = [line.bytes for rank in range(layout.pp) for line in memory_of_rank(model, job, rank).lines
               if line.name == "weights"]
    assert sum(weights) == 2 * predict.parameters(model).total
