"""Exercise 11.2: an optimizer whose state is divided among the ranks."""

import random

from gpucourse.exercises.expect import expect_at_most, expect_close
from gpucourse.exercises.on_ranks import on_ranks
from gpucourse.predict import link as cost

LR, MOMENTUM, STEPS = 0.1, 0.7, 3


def drawn(rank: int, length: int, seed: int):
    """One rank's gradients, a tensor for each step."""
    import torch

    generator = torch.Generator().manual_seed(seed + 1000 * rank)
    return [torch.randn(length, generator=generator, dtype=torch.float64).exp() for _ in range(STEPS)]


def held_by(optimizer, weights) -> int:
    """Bytes of the tensors that the optimizer keeps, weights left out."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(list(vars(optimizer).values())) if isinstance(leaf, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    storages.pop(weights.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def one_rank(build, seed: int):
    """On one rank: weights after the steps, one process's, bytes kept, bytes sent in a step, weights' bytes."""
    import torch
    import torch.distributed as dist

    from gpucourse import ranks

    n = dist.get_world_size()
    length = 3000 * n
    start = torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights, alone, m = start.clone(), start.clone(), torch.zeros_like(start)
    optimizer = build(weights, LR, MOMENTUM)
    everyone = [drawn(rank, length, seed) for rank in range(n)]
    sent = 0.0
    for step, own in enumerate(everyone[dist.get_rank()]):
        with ranks.counting() as seen:
            optimizer.step(own.clone())
        sent = max(sent, seen.sent())
        m = MOMENTUM * m + sum(gradients[step] for gradients in everyone) / n
        alone = alone - LR * m
    return weights, alone, held_by(optimizer, weights), sent, weights.nbytes


def run(build):
    for n in (2, 3):
        results = on_ranks(one_rank, n, build, random.randrange(10**6))
        off = [(result[0] - result[1]).abs().max().item() for result in results]
        worst = off.index(max(off))
        weights, alone, _, _, size = results[worst]
        furthest = f" (rank {worst} is furthest off)" if off[worst] > 1e-9 else ""
        yield expect_close(f"{n} ranks: weights after {STEPS} steps{furthest}", weights, alone, atol=1e-9,
                           note="Every rank ends a step with all weights; g is the mean of the ranks' gradients, and "
                                "momentum is added to before it moves anything.")
        yield expect_at_most(f"{n} ranks: kept beside the weights", max(result[2] for result in results), size / n,
                             "bytes", reason=f"for 1/{n} of the momentum",
                             note="Which elements of the momentum does this rank ever use?")
        yield expect_at_most(f"{n} ranks: sent in a step", max(result[3] for result in results),
                             cost.bus_factor("all-reduce", n) * size, "bytes", reason="for what an all-reduce sends",
                             note="A rank needs the sum of its own part only. Which collective leaves just that?")


class WholeMomentum:
    def __init__(self, weights, lr, momentum):
        import torch

        self.weights, self.lr, self.momentum, self.m = weights, lr, momentum, torch.zeros_like(weights)

    def step(self, gradient):
        import torch.distributed as dist

        dist.all_reduce(gradient)
        self.m.mul_(self.momentum).add_(gradient / dist.get_world_size())
        self.weights.sub_(self.lr * self.m)


class Sharded:
    """A right one, of which the broken ones below change one thing."""

    def __init__(self, weights, lr, momentum):
        import torch
        import torch.distributed as dist

        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.part = weights.chunk(dist.get_world_size())[dist.get_rank()]
        self.m = torch.zeros_like(self.part)

    def reduced(self, gradient):
        import torch
        import torch.distributed as dist

        g = torch.empty_like(self.part)
        dist.reduce_scatter_single(g, gradient)
        return g / dist.get_world_size()

    def gather(self):
        import torch.distributed as dist

        dist.all_gather_single(self.weights, self.part.clone())

    def step(self, gradient):
        self.m.mul_(self.momentum).add_(self.reduced(gradient))
        self.part.sub_(self.lr * self.m)
        self.gather()


class AllReduces(Sharded):
    def reduced(self, gradient):
        import torch.distributed as dist

        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()


class AddsUp(Sharded):
    def reduced(self, gradient):
        import torch.distributed as dist

        return super().reduced(gradient) * dist.get_world_size()


class KeepsItsPart(Sharded):
    def gather(self):
        return self.weights


class OwnGradient(Sharded):
    def reduced(self, gradient):
        import torch.distributed as dist

        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


BROKEN = {"the whole momentum on each rank": (WholeMomentum, "does this rank ever use"),
          "all-reduces the gradient": (AllReduces, "sum of its own part only"),
          "the sum instead of the mean": (AddsUp, "the mean of the ranks"),
          "no all-gather": (KeepsItsPart, "ends a step with all weights"),
          "its own gradient": (OwnGradient, "the mean of the ranks")}
