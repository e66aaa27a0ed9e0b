"""10.4: the mean over the trained tokens of all ranks (case C01)."""

import random

from gpucourse.exercises.bank.data_parallel_ranks import gradient, model_and_batch, near
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.on_ranks import on_ranks

ROWS = 12  # tokens of a rank


def one_rank(function, seed: int, trained: list[int]):
    """On one rank: DDP's gradient with the learner's loss, and what it could be the gradient of."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gpucourse import ranks

    rank, n = dist.get_rank(), dist.get_world_size()
    model, x, y = model_and_batch(seed, n * ROWS)
    masks = [torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed + r)) < trained[r] for r in range(n)]
    total = sum(trained)

    def of(divisors: list[float]):
        """The gradient when each rank's sum of trained losses is divided by its divisor, averaged over ranks."""
        twin = copy.deepcopy(model)
        for r, divisor in enumerate(divisors):
            rows = slice(r * ROWS, (r + 1) * ROWS)
            losses = (twin(x[rows]) - y[rows]).square().squeeze(1)
            (losses[masks[r]].sum() / divisor / n).backward()
        return gradient(twin)

    known = {"right": of([total / n] * n), "means": of([max(count, 1) for count in trained]),
             "small": of([total] * n), "positions": of([ROWS] * n), "sum": of([1] * n)}
    ddp = DistributedDataParallel(copy.deepcopy(model))
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    losses = (ddp(x[rows]) - y[rows]).square().squeeze(1)
    with ranks.counting() as seen:
        loss = function(losses, masks[rank])
    loss.backward()
    return dict(got=gradient(ddp.module), known=known, kinds=[call.kind for call in seen.calls], sent=seen.size())


NOTES = {
    "means": "That is a mean of the ranks' means: a token counts for more on the rank that has fewer of them. "
             "Whose tokens must the divisor count?",
    "small": "It is too small by the number of ranks. DDP averages what you divide by the sum of all tokens already.",
    "positions": "Every position has been counted, also those that nothing is learnt from.",
    "sum": "Nothing has been divided by the trained tokens.",
}


def run(function):
    few, many = random.randrange(1, 4), random.randrange(7, ROWS)
    for name, trained in (("different counts", [few, many]), ("a rank without a trained token", [many, 0])):
        results = on_ranks(one_rank, 2, function, random.randrange(10**6), trained)
        got, known = results[0]["got"], results[0]["known"]
        note = next((says for key, says in NOTES.items() if near(got, known[key])),
                    "With no trained token a mean is 0/0." if 0 in trained else "")
        yield expect_close(f"{name}: as one process with all tokens", got, known["right"], 1e-12, note=note)
        yield expect_equal(f"{name}: gradients equal on all ranks", near(got, results[1]["got"]), True)
        yield expect_at_most(f"{name}: collectives for the loss", len(results[0]["kinds"]), 1,
                             note="One number of each rank is missing on the others.")
        yield expect_at_most(f"{name}: sent for it", results[0]["sent"], 8, "bytes",
                             note="One number of each rank is missing on the others.")


def divided(local=False, times=True, positions=False, more=False):
    """The right answer, or with one thing wrong."""
    def loss(losses, trained):
        import torch.distributed as dist

        count = (losses.new_tensor(len(losses)) if positions else trained.sum().to(losses.dtype))
        if local:
            return losses[trained].sum() / count
        dist.all_reduce(count)
        if more:
            dist.all_reduce(losses.detach().sum())
        return losses[trained].sum() * (dist.get_world_size() if times else 1) / count
    return loss


right = divided
BROKEN = {
    "a mean of means": (divided(local=True), "That is a mean of the ranks' means"),
    "forgets that DDP averages": (divided(times=False), "too small by the number of ranks"),
    "all positions": (divided(positions=True), "Every position has been counted"),
    "the sum": (lambda losses, trained: losses[trained].sum(), "Nothing has been divided"),
    "sums the loss as well": (divided(more=True), "One number of each rank"),
}
