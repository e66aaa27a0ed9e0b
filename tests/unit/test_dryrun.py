"""Dry runs: extrapolation by instant, and what fake tensors never do."""

import pytest

from gpucourse import dryrun
from gpucourse.catalog import Job, gpt, llama
from gpucourse.dryrun.memory import extrapolate, run

SHAPES = (gpt("gpt", 6, 48, 2, vocab=700, context=64), llama("llama", 6, 48, 2, 1, 128, vocab=700, context=64))


JOBS = (Job(1, 16), Job(4, 64, recompute="full"), Job(2, 64, precision="bf16-autocast"))


@pytest.mark.parametrize("job", JOBS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_two_depths_give_every_instant_exactly(shape, job):
    assert dryrun.memory(shape, job).at == dryrun.memory(shape, job, whole=True).at


def test_the_largest_instant_changes_with_depth():
    """Extrapolating the peak alone would be wrong here: another instant is the largest at depth."""
    shape, job = gpt("gpt", 4, 64, 2, vocab=6000, context=64, tied=False), Job(1, 45, optimizer="sgd")
    shallow, deep = run(shape.but(layers=3), job), run(shape, job)

    def largest(table):
        return max(table, key=lambda instant: sum(table[instant].values()))

    far = extrapolate(shallow, deep, 60)
    assert largest(deep) == "loss" and largest(far) in ("embedding", "first block", "step")
    assert largest(far) == largest(run(shape.but(layers=60), job))


def test_a_dry_run_allocates_nothing_of_the_model(monkeypatch):
    """70 billion parameters pass through this machine."""
    shape = llama("llama-70b", 80, 8192, 64, 8, 28672, vocab=128256, context=8192)
    assert dryrun.memory(shape, Job(1, 8192, precision="bf16")).peak > 500 * 2**30


@pytest.mark.slow
def test_gpt2_xl_whole_equals_extrapolated():
    shape = gpt("gpt2-xl", 48, 1600, 25)
    for job in (Job(1, 1024), Job(4, 1024, precision="bf16-autocast"), Job(16, 1024, recompute="full")):
        assert dryrun.memory(shape, job).at == dryrun.memory(shape, job, whole=True).at
