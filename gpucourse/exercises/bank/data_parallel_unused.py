"""10.5: parameters that no loss reaches (case C06)."""

import random

from gpucourse.exercises.bank.data_parallel_ranks import WIDTH
from gpucourse.exercises.expect import expect_at_most, expect_equal
from gpucourse.exercises.on_ranks import on_ranks


def build(seed: int):
    """(model, the names that nothing reaches): some layers are unused, one is frozen, one gets gradients of zero."""
    import torch

    draw = random.Random(seed)
    names = [f"block_{place}" for place in range(6)]
    unused, frozen = sorted(draw.sample(names, 2)), draw.choice(["head", "stem"])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torch.nn.Linear(WIDTH, WIDTH)
            for name in names:
                setattr(self, name, torch.nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.5))
            self.silent = torch.nn.Linear(WIDTH, WIDTH)
            self.head = torch.nn.Linear(WIDTH, 1)
            self.passes = 0

        def forward(self, x):
            self.passes += 1
            x = self.stem(x)
            for name in names:
                x = x if name in unused else x + getattr(self, name)(x).tanh()
            return self.head(x + 0 * self.silent(x))

    torch.manual_seed(seed)
    model = Model()
    getattr(model, frozen).requires_grad_(False)
    return model, {name for name, _ in model.named_parameters() if name.partition(".")[0] in unused}


def two_steps(seed: int, names: list[str]) -> None:
    """DDP on this rank, with these parameters frozen: what is frozen is not waited for."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, _ = build(seed)
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    for _ in range(2):
        ddp(torch.randn(3, WIDTH)).sum().backward()


def run(function):
    import torch

    for turn in range(2):
        seed = random.randrange(10**6)
        model, expected = build(seed)
        if turn:  # gradients of an earlier time, which say nothing about this model's forward pass
            for p in model.parameters():
                p.grad = torch.ones_like(p) if p.requires_grad else None
        model.passes = 0
        named = function(model, torch.randn(3, WIDTH))
        named = [str(name) for name in named or ()]
        yield expect_equal(f"model {turn + 1}: the parameters that nothing reaches", sorted(named), sorted(expected),
                           note=why(model, set(named), expected))
        yield expect_at_most(f"model {turn + 1}: forward passes", model.passes, 1)
    if set(named) != expected:
        return  # DDP would wait, or leave something untrained
    on_ranks(two_steps, 2, seed, named)
    yield expect_equal("DDP trains when these are frozen", True, True)


def why(model, named: set[str], expected: set[str]) -> str:
    more = named - expected
    if any(not p.requires_grad for name, p in model.named_parameters() if name in more):
        return "One of them is frozen. DDP does not wait for what asks for no gradient."
    if any(name.startswith("silent") for name in more):
        return "One of them has a gradient, which is zero. DDP waits for its arrival, not for its value."
    if not named:
        return "Is .grad as the backward pass of this call left it?"
    return "A parameter that the loss does not reach has .grad None after backward."


def reached(clear=True, zero=False, frozen=False):
    """The right answer, or with one thing wrong."""
    def never_reached(model, x):
        if clear:
            model.zero_grad()
        model(x).sum().backward()
        return [name for name, p in model.named_parameters() if (p.requires_grad or frozen)
                and (p.grad is None or (zero and not p.grad.any()))]
    return never_reached


right = reached
BROKEN = {
    "stale gradients": (reached(clear=False), "as the backward pass of this call left it"),
    "gradients of zero": (reached(zero=True), "which is zero"),
    "frozen as well": (reached(frozen=True), "One of them is frozen"),
    "all of them": (lambda model, x: [name for name, p in model.named_parameters() if p.requires_grad],
                    "which is zero"),
}
