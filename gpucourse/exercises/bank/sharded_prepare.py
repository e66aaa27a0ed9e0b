"""Exercise 11.5: an optimizer that holds the tensors which the model computes with."""

import random

from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.on_ranks import on_ranks

LR, WIDTH, STEPS = 0.05, 8, 2


def network(seed: int):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)).double()


def trained(model, optimizer, batches):
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank(prepare, seed: int):
    """On one rank: all weights after the steps, one process's, whether all are sharded, gathers in a forward."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from gpucourse import ranks

    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed + 1)  # the same batches on every rank
    batches = [torch.randn(n, 5, WIDTH, dtype=torch.float64).exp() for _ in range(STEPS)]
    alone = network(seed)
    before = torch.cat([p.detach().flatten().clone() for p in alone.parameters()])
    trained(alone, torch.optim.SGD(alone.parameters(), lr=LR), [x.flatten(0, 1) for x in batches])
    prepared = prepare(network(seed), LR)
    if not isinstance(prepared, tuple | list) or len(prepared) != 2:
        raise TypeError(f"prepare returned {type(prepared).__name__}; it must return the model and its optimizer")
    model, optimizer = prepared
    sharded = all(isinstance(p, DTensor) for p in model.parameters())
    with ranks.counting() as seen, torch.no_grad():
        model(batches[0][rank])
    trained(model, optimizer, [x[rank] for x in batches])
    whole = torch.cat([(p.full_tensor() if isinstance(p, DTensor) else p).detach().flatten()
                       for p in model.parameters()])
    largest = max((call.size for call in seen.calls if call.kind == "all-gather"), default=0)
    expected = torch.cat([p.detach().flatten() for p in alone.parameters()])
    kept = sum(p.to_local().nbytes if isinstance(p, DTensor) else p.nbytes
               for group in optimizer.param_groups for p in group["params"])
    return whole, expected, sharded, largest, bool((whole != before).any()), kept, before.nbytes


def run(prepare):
    results = on_ranks(one_rank, 2, prepare, random.randrange(10**6))
    whole, expected, sharded, largest, moved, kept, size = results[0]
    yield expect_equal("the weights are divided among the ranks", sharded, True,
                       note="fully_shard the layers, and then the model.")
    yield expect_equal("the weights have moved", moved, True,
                       note="Whose parameters does the optimizer hold? Compare their ids with the model's.")
    yield expect_close("the weights after two steps, against one process", whole, expected, atol=1e-12,
                       note="Every parameter of the model belongs to the optimizer, at the given learning rate.")
    yield expect_at_most("gathered at once", largest, 8 * (WIDTH * 12 + 12), "bytes", reason="for the larger layer",
                         note="One unit holds the whole model: shard each layer first.")
    yield expect_at_most("weights that the optimizer keeps alive on a rank", kept, size / 2, "bytes",
                         reason="for half of them", note="It holds whole parameters.")


def optimizer_first(model, lr):
    import torch
    from torch.distributed.fsdp import fully_shard

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, optimizer


def not_sharded(model, lr):
    import torch

    return model, torch.optim.SGD(model.parameters(), lr=lr)


def one_unit(model, lr):
    import torch
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def between(model, lr):
    import torch
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    fully_shard(model[1])
    fully_shard(model)
    return model, optimizer


BROKEN = {"the optimizer first": (optimizer_first, "Whose parameters does the optimizer hold"),
          "not sharded": (not_sharded, "fully_shard the layers"),
          "one unit": (one_unit, "One unit holds the whole model"),
          "after the first layer": (between, "Every parameter of the model belongs to the optimizer")}
