import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.models import shape
from gpucourse.catalog.shapes import gpt, llama
from gpucourse.errors import BadInput
from gpucourse.predict.candidates import candidates
from gpucourse.predict.levers import Lever, levers, moves
from gpucourse.predict.plan import plan
from gpucourse.predict.search import TIE, search, simplicity, speed, speed_class, why

SMALL = llama("small", 8, 1024, 16, 4, 2816, vocab=32000, context=4096)
JOB = Job(seq=2048, precision="bf16-autocast")
EIGHT = cluster("a100-40", 8)


def sequences(job):
    return job.layout.dp * job.micro_batch * job.accumulate


@settings(max_examples=20)
@given(st.sampled_from([1, 2, 4, 6, 8, 16]), st.integers(1, 48), st.sampled_from([1024, 2048, 1000]))
def test_candidates_use_every_gpu_and_read_the_whole_batch(number, batch, seq):
    there = cluster("a100-40", number, 8, "ib-200")
    for job in candidates(SMALL, there, batch, JOB.but(seq=seq)):
        at = job.layout
        assert at.ranks == number and sequences(job) == batch
        assert SMALL.kv_heads % at.tp == 0 and SMALL.layers % (at.pp * at.chunks) == 0
        assert seq % at.cp == 0 and at.tp <= 8


def test_candidates_are_all_different_and_cover_each_axis():
    found = list(candidates(SMALL, EIGHT, 16, JOB))
    assert len(found) == len(set(found))
    for axis in ("dp", "tp", "pp", "cp"):
        assert {getattr(job.layout, axis) for job in found} >= {1, 2}
    assert {job.layout.schedule for job in found} == {"1f1b", "interleaved", "zero-bubble"}


def test_experts_are_divided_too():
    found = candidates(shape("mixtral-8x7b"), EIGHT, 8, JOB)
    assert {job.layout.ep for job in found} == {1, 2, 4, 8}


def test_the_best_plan_is_the_best_of_all():
    found = search(SMALL, EIGHT, 16, JOB, top=100_000)
    every = []
    for job in candidates(SMALL, EIGHT, 16, JOB):
        try:
            every.append(plan(SMALL, job, EIGHT))
        except BadInput:
            continue
    fitting = [one for one in every if one.fits == "yes"]
    assert len(found.plans) == found.verdicts["yes"] == len(fitting)
    assert sum(found.verdicts.values()) == len(every) == found.layouts - sum(found.skipped.values())
    best = max(fitting, key=speed)
    assert speed(best) / speed(found.plans[0]) < TIE
    same = [one for one in fitting if speed_class(speed(one)) == speed_class(speed(best))]
    simplest = min(same, key=lambda one: tuple(simplicity(one.job).values()))
    assert simplicity(found.plans[0].job) == simplicity(simplest.job)


def test_plans_come_fastest_first_and_simplest_first_among_equals():
    plans = search(SMALL, EIGHT, 16, JOB, top=50).plans
    ranks = [(-speed_class(speed(one)), *simplicity(one.job).values()) for one in plans]
    assert len(plans) > 5 and ranks == sorted(ranks)
    assert all(one.fits == "yes" for one in plans)


def test_a_search_stops_when_it_has_plans_enough():
    few, all_of_them = (search(SMALL, EIGHT, 16, JOB, top=top) for top in (2, 100_000))
    assert few.plans == all_of_them.plans[:2]
    assert few.verdicts["yes"] == 2 < all_of_them.verdicts["yes"]


def test_one_gpu_has_one_layout():
    found = search(SMALL, cluster("a100-40"), 4, JOB)
    assert {one.job.layout for one in found.plans} == {Layout()}
    assert found.plans[0].job.recompute == "none"


def test_where_nothing_fits_the_nearest_is_shown():
    large = gpt("large", 48, 6144, 48, context=2048)
    found = search(large, cluster("t4", 2), 2, JOB.but(precision="fp16-autocast"))
    (nearest,) = found.plans
    assert found.verdicts["yes"] == found.verdicts["uncertain"] == 0 and nearest.fits == "no"
    assert nearest.ledger.device[0] > nearest.cluster.gpu.capacity


def test_why_names_what_is_saved():
    slow, fast = (plan(SMALL, JOB.but(recompute=r), cluster("a100-40")) for r in ("full", "none"))
    gain, share = speed(fast) / speed(slow) - 1, 1 - sum(fast.time.compute) / sum(slow.time.compute)
    assert why(fast, slow) == (f"{gain:.1%} faster: compute takes {share:.1%} of the step less with "
                               "recompute none, not full")


def test_why_says_what_is_simpler_where_speeds_are_equal():
    plain = plan(SMALL, JOB, cluster("a100-40"))
    same = replace(plain, job=JOB.but(recompute="op"))
    assert why(plain, same) == "as fast within 3%, and simpler: recompute none, not op"


def test_levers_say_what_is_saved_and_what_it_costs():
    job = JOB.but(micro_batch=4, layout=Layout(dp=8, shard="zero1"))
    found = {lever.change: lever for lever in levers(plan(SMALL, job, EIGHT))}
    assert found["halving the micro-batch"].saved > 0
    assert found["shard none"].saved < 0 <= found["shard zero2"].saved
    assert str(Lever("halving the micro-batch", 2**31, -0.041, "no")) == (
        "halving the micro-batch saves 2.00 GiB and costs 4.1% of tokens/s (fits: no)")
    assert str(Lever("tp 2", -(2**20), 0.0, "yes")) == "tp 2 takes 1.00 MiB more and keeps the speed"


@given(st.sampled_from(list(candidates(SMALL, EIGHT, 16, JOB))))
def test_a_lever_reads_the_same_batch_on_the_same_gpus(job):
    for change, other in moves(job):
        assert other.layout.ranks == 8 and sequences(other) == 16, change


@pytest.mark.parametrize(("batch", "job", "message"), [
    (0, JOB, "global-batch is 0"), (-8, JOB, "global-batch is -8"), (math.nan, JOB, "global-batch is nan"),
    (16, JOB.but(seq=8192), "seq 8192 is longer than the context"),
])
def test_questions_that_cannot_be_answered(batch, job, message):
    with pytest.raises(BadInput, match=message):
        search(SMALL, EIGHT, batch, job)


def test_a_batch_that_no_layout_divides():
    with pytest.raises(BadInput, match="no layout of 7 GPUs divides"):
        search(SMALL, cluster("a100-40", 7), 6, JOB.but(seq=1000))
