"""What must hold of every prediction, whatever the shape and the layout."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.halves import refusal
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import SHARDS, Layout
from gpucourse.catalog.shapes import gpt, llama
from gpucourse.errors import BadInput
from gpucourse.predict.memory import memory, memory_of_rank
from gpucourse.predict.plan import plan

GPT = gpt("gpt", 8, 512, 8, vocab=5000, context=4096)
LLAMA = llama("llama", 8, 512, 8, 8, 1408, vocab=5000, context=4096)
SHAPES = st.sampled_from([GPT, LLAMA])
POWERS = st.sampled_from([1, 2, 4, 8])
PRECISIONS = st.sampled_from(["fp32", "bf16", "bf16-autocast", "bf16-master"])
SEQUENCES = st.sampled_from([128, 256, 512, 1024, 2048])
THERE = cluster("a100-80", 128, 8, "ib-200")
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def predicted(shape, job):
    """The ledger; an example is dropped where the layout is not predicted, or cannot be trained."""
    assume(not refusal(job))
    try:
        return memory(shape, job)
    except BadInput as error:
        assume("is not predicted" not in str(error))
        raise


def states(shape, job):
    """Of the rank that has most of them, which need not be the fullest."""
    ledgers = [predicted(shape, job)]
    if job.layout.pp > 1:
        ledgers = [memory_of_rank(shape, job, rank) for rank in range(job.layout.pp)]
    return max(sum(ledger.states().values()) for ledger in ledgers)


def activations(shape, job):
    """The most that is held beside weights, gradients and optimizer state; in a pipeline by the first rank, as another
    choice may make another rank the fullest."""
    ledger = predicted(shape, job)
    if job.layout.pp > 1:
        ledger = memory_of_rank(shape, job, 0)
    parts = [line for line in ledger.lines if line.category in ("activations", "temporaries")]
    return max(sum(line.at.get(instant, 0) for line in parts) for instant in ledger.instants)


@st.composite
def layouts(draw):
    dp, tp, pp = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(3))
    cp = draw(st.sampled_from([1, 1, 2]))
    together = tp > 1 and draw(st.booleans())
    shard = draw(st.sampled_from(SHARDS)) if dp > 1 else "none"
    schedule = draw(st.sampled_from(("1f1b", "gpipe", "interleaved" if pp == 2 else "1f1b", "zero-bubble")))
    return Layout(dp=dp, shard=shard, tp=tp, pp=pp, cp=cp, sequence_parallel=together, schedule=schedule,
                  reshard="never" if schedule == "zero-bubble" else "always", chunks=1 + (schedule == "interleaved"),
                  vocab_parallel_loss=tp > 1 and draw(st.booleans()))


@few
@given(SHAPES, PRECISIONS, layouts(), st.sampled_from(["dp", "tp", "pp", "cp"]))
def test_more_ranks_never_cost_more_state(shape, precision, layout, axis):
    job = Job(1, 128, precision, accumulate=8, layout=layout)
    more = layout.but(**{axis: 2 * getattr(layout, axis)})
    assert states(shape, job.but(layout=more)) <= states(shape, job)


@few
@given(SHAPES, PRECISIONS, SEQUENCES, SEQUENCES, layouts(), st.sampled_from(["none", "full"]))
def test_more_sequence_never_keeps_less(shape, precision, one, other, layout, recompute):
    short, long = sorted((one, other))
    job = Job(1, short, precision, recompute=recompute, accumulate=8, layout=layout)
    assert activations(shape, job) <= activations(shape, job.but(seq=long))


@few
@given(SHAPES, PRECISIONS, SEQUENCES, layouts(), st.sampled_from(["layer-2", "layer-3", "op", "op-2", "attention"]))
def test_what_is_recomputed_is_not_kept(shape, precision, seq, layout, selective):
    job = Job(2, seq, precision, accumulate=8, layout=layout)
    full, some, none = (activations(shape, job.but(recompute=name)) for name in ("full", selective, "none"))
    assert full <= some <= none


@few
@given(SHAPES, PRECISIONS, SEQUENCES, layouts(), st.sampled_from(["none", "full"]))
def test_the_lines_add_up_to_the_total(shape, precision, seq, layout, recompute):
    ledger = predicted(shape, Job(1, seq, precision, recompute=recompute, accumulate=8, layout=layout))
    for instant in ledger.instants:
        assert sum(line.at.get(instant, 0) for line in ledger.lines) == ledger.total(instant)
    assert ledger.peak == max(ledger.total(instant) for instant in ledger.instants)
    assert ledger.peak == sum(ledger.memory().at[ledger.peak_at].values())


@few
@given(SHAPES, PRECISIONS, SEQUENCES, st.sampled_from(["none", "full"]))
def test_one_rank_along_each_axis_is_one_device(shape, precision, seq, recompute):
    job = Job(2, seq, precision, recompute=recompute)
    ones = job.but(layout=Layout(1, tp=1, pp=1, cp=1, ep=1, reshard="never", bucket_view=False))
    assert predicted(shape, ones).lines == predicted(shape, job).lines
    alone, same = (plan(shape, one, cluster("a100-80")) for one in (job, ones))
    assert alone.time == same.time and same.carried == ()


@few
@given(SHAPES, SEQUENCES, layouts(), POWERS)
def test_a_plan_uses_no_more_than_the_peak(shape, seq, layout, micro):
    assume(layout.ranks <= THERE.gpus)
    job = Job(micro, seq, "bf16", accumulate=8, layout=layout)
    predicted(shape, job)
    found = plan(shape, job, THERE)
    low, high = found.mfu
    assert 0 < low < high < 1
    assert found.time.seconds[0] == pytest.approx(
        sum(part[0] for part in (found.time.compute, found.time.bubble, found.time.waiting)))
