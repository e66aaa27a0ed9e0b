"""10.3: a batch norm over the batches of all ranks, in one collective."""

import random

from gpucourse.exercises.bank.data_parallel_ranks import near
from gpucourse.exercises.expect import expect_at_most, expect_close
from gpucourse.exercises.on_ranks import on_ranks

ROWS, CHANNELS, EPS = (3, 7), 5, 1e-5  # rows of each rank


def one_rank(function, seed: int):
    """On one rank: outputs and gradients, the learner's and one process's, and the collectives of both passes."""
    import torch
    import torch.distributed as dist

    from gpucourse import ranks

    rank = dist.get_rank()
    torch.manual_seed(seed)
    offset = torch.arange(float(ROWS[0] + ROWS[1])).double()[:, None]  # each rank's rows lie elsewhere
    whole = torch.randn(sum(ROWS), CHANNELS).double().exp() + 0.5 * offset
    weight = torch.randn(sum(ROWS), CHANNELS).double()
    mine = slice(0, ROWS[0]) if rank == 0 else slice(ROWS[0], sum(ROWS))
    x = whole[mine].clone().requires_grad_()
    whole.requires_grad_()
    wanted = torch.nn.functional.batch_norm(whole, None, None, training=True, eps=EPS)
    (wanted * weight).sum().backward()
    with ranks.counting() as forward:
        y = function(x, EPS)
        y.sum().item()  # a collective that is not waited for is waited for here
    with ranks.counting() as backward:
        (y * weight[mine]).sum().backward()
    own = torch.nn.functional.batch_norm(x.detach(), None, None, training=True, eps=EPS)
    parts = [part.detach() for part in whole.split(list(ROWS))]
    mean, var = (sum(f(part) for part in parts) / 2 for f in (lambda p: p.mean(0), lambda p: p.var(0, correction=0)))
    sample = (x.detach() - whole.detach().mean(0)) / (whole.detach().var(0) + EPS).sqrt()
    known = {"own": own, "means": (x.detach() - mean) / (var + EPS).sqrt(), "sample": sample}
    return dict(y=y.detach(), wanted=wanted[mine].detach(), dx=x.grad, wanted_dx=whole.grad[mine], known=known,
                forward=forward.count(), backward=backward.count(), sent=forward.size())


NOTES = {
    "own": "Each rank has normalised by its own rows.",
    "means": "That averages the ranks' means and variances. The ranks have different numbers of rows, and the variance "
             "over all rows is not the mean of the variances. What can be added up instead?",
    "sample": "The batch's variance is divided by the number of rows, not by one less.",
}
ELSE = "Which sums of a column, added up over the ranks, give mean and variance over all rows?"
THROUGH = ("The forward pass is right. A row changes the statistics that every other row is normalised by, on all "
           "ranks: does your all-reduce let gradients through?")


def run(function):
    results = on_ranks(one_rank, 2, function, random.randrange(10**6))
    forward_right = all(near(of["y"], of["wanted"]) for of in results)
    for rank, of in enumerate(results):
        note = next((says for name, says in NOTES.items() if near(of["y"], of["known"][name])), ELSE)
        yield expect_close(f"rank {rank}: as one process with all rows", of["y"], of["wanted"], 1e-9, note=note)
    for rank, of in enumerate(results):
        yield expect_close(f"rank {rank}: gradient of its rows", of["dx"], of["wanted_dx"], 1e-9,
                           note=THROUGH if forward_right else "It is the gradient of another function: the forward "
                                                              "pass first.")
    yield expect_at_most("collectives in the forward pass", results[0]["forward"], 1,
                         note="What is added up can travel side by side in one tensor.")
    yield expect_at_most("collectives in the backward pass", results[0]["backward"], 1)
    yield expect_at_most("sent in the forward pass", results[0]["sent"], (2 * CHANNELS + 1) * 8, "bytes",
                         reason="for two sums a channel and a count", note="The rows themselves need not travel.")


def summed(tensor, through=True):
    """The sum over the ranks; through: gradients pass."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    if through:
        return functional.all_reduce(tensor, "sum", dist.group.WORLD)
    tensor = tensor.detach().clone()
    dist.all_reduce(tensor)
    return tensor


def sums(through=True, apart=False, correction=0):
    """The right answer, or with one thing wrong."""
    def norm(x, eps):
        import torch

        parts = [x.sum(0), x.square().sum(0), x.new_full((1,), len(x))]
        if apart:
            s, q, n = (summed(part, through) for part in parts)
        else:
            s, q, n = summed(torch.cat(parts), through).split([x.shape[1], x.shape[1], 1])
        mean = s / n
        var = (q / n - mean.square()) * n / (n - correction)
        return (x - mean) / (var + eps).sqrt()
    return norm


def spread_around_a_mean_of_means(x, eps):
    import torch.distributed as dist

    mean = summed(x.mean(0)) / dist.get_world_size()
    var = summed((x - mean).square().mean(0)) / dist.get_world_size()
    return (x - mean) / (var + eps).sqrt()


def own_rows(x, eps):
    return (x - x.mean(0)) / (x.var(0, correction=0) + eps).sqrt()


def mean_of_means(x, eps):
    import torch
    import torch.distributed as dist

    both = summed(torch.cat([x.mean(0), x.var(0, correction=0)])) / dist.get_world_size()
    mean, var = both.chunk(2)
    return (x - mean) / (var + eps).sqrt()


def gathers_rows(x, eps):
    import torch
    import torch.distributed as dist

    width = x.shape[1]
    room = torch.zeros(sum(ROWS), width, dtype=x.dtype)
    place = slice(0, ROWS[0]) if dist.get_rank() == 0 else slice(ROWS[0], sum(ROWS))
    room[place] = x
    rows = summed(room)
    return (x - rows.mean(0)) / (rows.var(0, correction=0) + eps).sqrt()


right = sums
BROKEN = {
    "its own rows": (own_rows, "Each rank has normalised by its own rows"),
    "a mean of means": (mean_of_means, "averages the ranks' means and variances"),
    "a mean of means, and the spread around it": (spread_around_a_mean_of_means, "the forward pass first"),
    "no gradient through the statistics": (sums(through=False), "let gradients through"),
    "three collectives": (sums(apart=True), "side by side in one tensor"),
    "variance of a sample": (sums(correction=1), "not by one less"),
    "gathers the rows": (gathers_rows, "The rows themselves need not travel"),
}
