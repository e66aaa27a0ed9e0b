"""Memory measured inside a rank: what is anchored at what, and that it agrees with what is known."""

import pytest
import torch

from gpucourse import predict, ranks
from gpucourse.catalog import Job, Layout, gpt
from gpucourse.measure import on_rank
from gpucourse.measure.fresh import PREFIX, instants
from gpucourse.models import Training

SHAPE = gpt("small", layers=3, hidden=64, heads=4, vocab=128, context=64)
QUIET = {"KINETO_LOG_LEVEL": "99"}


def test_a_step_in_which_a_free_was_not_seen_is_not_taken():
    whole = [(1, PREFIX + "forward", 0), (2, "[memory]", 50), (3, "[memory]", -50)]
    unseen = whole[:2]  # seems to end 50 higher than it began: so it began 50 lower
    for steps in ([whole, unseen], [unseen, whole]):
        at = instants(on_rank.anchored(200, steps), {"weights": 100})
        assert sum(at["forward"].values()) == 250


def test_most_allocated_is_the_highest_moment_and_meta_tensors_are_none():
    def call():
        torch.empty(1000, device="meta")
        one = torch.empty(1000)
        del one
        return torch.empty(500)

    assert on_rank.most_allocated(call) == 4000


def sharded(shape, job):
    from gpucourse.models.parallel import laid_out

    return Training(shape, job, model=laid_out(shape, job))


def on_two(shape, job):
    return on_rank.memory(sharded, shape, job)


class Replicated(Training):
    """DDP, whose optimizer's state is divided where job.layout says zero1."""

    def __init__(self, shape, job):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(shape, job)
        self.whole = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if job.layout.shard == "zero1":
            self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, foreach=True)

    def loss(self, tokens, targets):
        return torch.nn.functional.cross_entropy(self.whole(tokens).flatten(0, 1), targets.flatten())


def replicated_on_two(shape, jobs):
    return [on_rank.memory(Replicated, shape, job) for job in jobs]


def test_ddp_keeps_gradients_in_its_buckets_with_zero_1_too():
    jobs = [Job(2, 64, layout=Layout(dp=2, shard=shard)) for shard in ("none", "zero1")]
    results = ranks.run(replicated_on_two, 2, SHAPE, jobs, env=QUIET, timeout=600)
    for job, *seen in zip(jobs, *results, strict=True):
        most = max(seen, key=lambda memory: memory.peak)
        assert sum(most.at["forward"].values()) == pytest.approx(predict.memory(SHAPE, job).total("forward"), rel=0.03)


@pytest.mark.parametrize("reshard", ("always", "never"))
def test_sharded_weights_on_two_ranks_are_within_three_per_cent_of_the_ledger(reshard):
    job = Job(2, 64, layout=Layout(dp=2, shard="zero3", reshard=reshard))
    seen = max(ranks.run(on_two, 2, SHAPE, job, env=QUIET, timeout=600), key=lambda memory: memory.peak)
    ledger = predict.memory(SHAPE, job)
    assert seen.peak == pytest.approx(ledger.peak, rel=0.03)
    assert seen.at["step"]["weights"] == ledger.states()["weights"]
    assert seen.at["step"]["optimizer"] == ledger.states()["optimizer"]
    assert seen.also["gradients in step()"] == ledger.states()["gradients"]
