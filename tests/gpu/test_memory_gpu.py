"""The measured step and the allocator on a GPU; nothing here runs without one."""

import pytest
import torch

from gpucourse import measure, models, predict
from gpucourse.catalog import Job, gpt
from gpucourse.evidence import INSTANTS, STATES

pytestmark = [pytest.mark.gpu,
              pytest.mark.skipif(not torch.cuda.is_available(), reason="needs 1 GPU (this machine has 0)")]

SHAPE, JOB = gpt("gpt", 4, 512, 8, vocab=4096, context=512), Job(8, 512)


def test_each_instant_has_its_peak_and_the_states_are_the_predicted_ones():
    seen = measure.memory(models.training, SHAPE, JOB, "cuda")
    assert set(INSTANTS) <= set(seen.at)
    computed = predict.memory(SHAPE, JOB)
    for name in STATES:
        assert seen.at["step"][name] == pytest.approx(computed.states()[name], rel=0.01)
    assert seen.peak == pytest.approx(computed.peak, rel=0.1)


def test_allocated_is_below_reserved_is_below_used():
    kept = torch.ones(64 * 1024 * 1024, device="cuda")
    now = measure.allocator()
    assert kept.nbytes <= now.allocated <= now.reserved <= now.used <= now.capacity
