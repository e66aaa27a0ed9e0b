"""Checks of 03.5: recomputation of a function that draws random numbers."""

import random
import traceback

from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


def run_recomputed(function):
    """Values, gradients, the random numbers afterwards, what is kept, and how often the function runs."""
    import copy

    import torch
    from torch import nn
    from torch.utils import checkpoint

    from gpucourse.measure import LiveStorages

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(48, 200), nn.GELU(), nn.Dropout(0.3), nn.Linear(200, 48),
                                        nn.Dropout(0.2))
            self.calls = self.borrowed = 0

        def forward(self, x):
            self.calls += 1
            callers = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)]
            self.borrowed += checkpoint.__file__ in callers
            return self.layers(x)

    module = Counted().double()
    twin, x, start = copy.deepcopy(module), torch.randn(60, 48, dtype=torch.float64).exp(), random.randint(1, 10**6)

    def step(run, module):
        torch.manual_seed(start)
        leaf = x.clone().requires_grad_()
        with LiveStorages() as live:
            live.own(module, leaf)
            before = live.live
            made = run(run(leaf))  # twice: each call has its own masks
            kept = live.live - before
            (made ** 3).mean().backward()
        return made.detach(), [leaf.grad, *(p.grad for p in module.parameters())], torch.rand(4), kept

    with torch.random.fork_rng(devices=()):
        wanted, wanted_gradients, wanted_after, _ = step(twin, twin)
        made, gradients, after, kept = step(lambda x: function(module, x), module)
    yield expect_close("the result", made, wanted, atol=1e-12, note="Forward should be the function, as it is.")
    if any(gradient is None for gradient in gradients):
        yield expect_equal("every parameter and x have a gradient", None, 0,
                           note="In backward, run the function with gradients enabled on a detached x that requires "
                                "one, and go backward from its result.")
        return
    flat, wanted_flat = (torch.cat([g.flatten() for g in each]) for each in (gradients, wanted_gradients))
    yield expect_close("gradients of x and of the parameters", flat, wanted_flat, atol=1e-12,
                       note="The second forward drew other masks than the first. What decides which are drawn, and can "
                            "it be remembered?")
    yield expect_close("the random numbers that come next", after, wanted_after, atol=0.0,
                       note="Whoever draws after backward gets other numbers than without recomputation. In which "
                            "state did backward find the generator, and in which did it leave it?")
    yield expect_at_most("kept between forward and backward", kept, 3 * x.nbytes + 2 * 6000, "bytes",
                         reason="for two inputs, a result and two random states",
                         note="More than x is kept: autograd was recording in forward.")
    yield expect_equal("calls of the function, for two recomputed calls", module.calls, 4,
                       note="Once in forward and once in backward, each.")
    yield expect_equal("calls made by torch.utils.checkpoint", module.borrowed, 0,
                       note="It does all of this for you. Write what it does.")


def by_the_library(function, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(function, x, use_reentrant=False)


def remake(state="none", record=False, back="detached"):
    def recomputed(function, x):
        import torch

        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, function, x):
                ctx.function, ctx.before = function, torch.get_rng_state()
                if state == "constant":
                    torch.manual_seed(0)
                ctx.save_for_backward(x)
                return function(x)

            @staticmethod
            def backward(ctx, gradient):
                x = ctx.saved_tensors[0].detach().requires_grad_()
                if state == "not put back":
                    torch.set_rng_state(ctx.before)
                if state == "constant":
                    torch.manual_seed(0)
                with torch.enable_grad():
                    y = ctx.function(x)
                torch.autograd.backward(y, gradient)
                return None, x.grad

        return function(x) if record else Again.apply(function, x)
    return recomputed
