"""Dry runs of one rank of many: what torch's own tools must not add to them."""

from contextlib import nullcontext

import pytest
import torch.distributed as dist

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, llama
from gpucourse.dryrun import ledger
from gpucourse.dryrun.processes import one_rank_of
from gpucourse.errors import BadInput

MODEL = llama("llama", 2, 48, 4, 2, 112, vocab=720, context=64)
JOB = Job(1, 48, layout=Layout(tp=2, sequence_parallel=True, vocab_parallel_loss=True))


def test_dtensor_tries_shapes_unseen(monkeypatch):
    """With a vocabulary-parallel loss it tries shapes at global size in every step, and a loud trial is counted."""
    quiet = dryrun.memory(MODEL, JOB)
    monkeypatch.setattr(ledger, "quiet_propagation", nullcontext)
    loud = dryrun.memory(MODEL, JOB)
    assert loud.total("loss") > 1.02 * quiet.total("loss")
    assert abs(quiet.total("loss") - predict.memory(MODEL, JOB).total("loss")) <= 20


def test_a_rank_cannot_pretend_to_be_another():
    with one_rank_of(2):
        assert dist.get_world_size() == 2
        with pytest.raises(BadInput, match="this process is a rank already"), one_rank_of(4):
            pass
    assert not dist.is_initialized()
