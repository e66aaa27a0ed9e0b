"""The measured step against the dry run: the allocator's events against dispatch, two ways that can disagree."""

import sys

import cloudpickle
import pytest
import torch

from gpucourse import dryrun, measure, models
from gpucourse.catalog import Job, gpt
from gpucourse.errors import BadInput, CourseError
from gpucourse.evidence import STATES
from gpucourse.measure.fresh import instants

SHAPE = gpt("gpt", 4, 256, 4, vocab=256, context=256)
JOBS = {
    "fp32": Job(8, 256),
    "bf16-autocast": Job(8, 256, precision="bf16-autocast"),
    "recompute": Job(8, 256, recompute="full"),
    "recompute op, loss in parts": Job(8, 256, recompute="op", chunked_loss=4),
    "sgd": Job(8, 256, optimizer="sgd"),
}
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a notebook defines travels
WITHIN = 0.02  # of the peak: the promise of lesson 01


@pytest.mark.parametrize("name", JOBS)
def test_dry_run_is_within_two_per_cent_of_the_measured_peak(name):
    job = JOBS[name]
    dry, seen = dryrun.memory(SHAPE, job), measure.memory(models.training, SHAPE, job)
    assert seen.kind == "measured" and "cpu" in seen.device
    assert abs(seen.peak / dry.peak - 1) <= WITHIN
    assert {c: seen.at["step"][c] for c in STATES} == {c: dry.at["step"].get(c, 0) for c in STATES}
    assert seen.also["process high-water"] > 0.9 * seen.peak


class Planted(models.Training):
    """The same training with 5 % of its peak held by something that no ledger knows."""

    def __init__(self, shape, job, extra):
        super().__init__(shape, job)
        self.extra = torch.ones(extra, dtype=torch.uint8)


def test_a_planted_tensor_of_five_per_cent_is_seen():
    job = JOBS["fp32"]
    dry = dryrun.memory(SHAPE, job)
    seen = measure.memory(Planted, SHAPE, job, dry.peak // 20)
    assert seen.peak / dry.peak - 1 > WITHIN


def test_any_function_that_takes_a_step_can_be_measured():
    def build():
        layer = torch.nn.Linear(512, 512, bias=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step():
            layer(torch.ones(64, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    seen = measure.memory(build)
    assert seen.at["step"]["weights"] == seen.at["step"]["gradients"] == 4 * 512 * 512


def test_categories_at_the_highest_moment_of_each_instant():
    events = [(1, "[memory]", 100), (2, "gpucourse instant: forward", 0), (3, "[memory]", 50), (4, "[memory]", -50),
              (5, "gpucourse instant: step", 0), (6, "gpucourse gradient: 7 30", 0), (7, "[memory]", 40),
              (8, "gpucourse instant: end", 0), (9, "[memory]", 1000)]
    at = instants(events, {"weights": 60, "optimizer": 10})
    rest = "activations and temporaries"
    assert at == {"forward": {"weights": 60, "optimizer": 10, "gradients": 0, rest: 80},
                  "step": {"weights": 60, "optimizer": 10, "gradients": 30, rest: 40}}


def test_failures_are_one_line():
    def broken():
        raise ValueError("no such layer")

    with pytest.raises(CourseError, match="the measured step failed: ValueError: no such layer"):
        measure.memory(broken)
    with pytest.raises(BadInput, match="takes a function that builds a step"):
        measure.memory(3)


def test_a_step_that_never_ends_meets_its_deadline():
    def forever():
        while True:
            pass

    with pytest.raises(CourseError, match="had not finished after 4 s"):
        measure.memory(forever, deadline=4)


def test_a_step_that_kills_its_process_is_said():
    def gone():
        import os

        os.abort()

    with pytest.raises(CourseError, match="the process that measures the step died"):
        measure.memory(gone)
