"""Check of 02.4: the FLOPs of linear layers, counted in one forward pass, beside PyTorch's own count."""

import random

from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


def drawn_model():
    """Linear layers of random widths, one used twice, the first or a middle one frozen; and how often it was run."""
    import torch

    class Drawn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [random.randint(3, 40) for _ in range(3)]
            self.first = torch.nn.Linear(widths[0], widths[1], bias=random.random() < 0.5)
            self.twice = torch.nn.Linear(widths[1], widths[1])
            self.frozen = torch.nn.Linear(widths[1], widths[2]).requires_grad_(False)
            self.last = torch.nn.Linear(widths[2], 5)
            self.norm = torch.nn.LayerNorm(widths[1])
            self.runs = 0

        def forward(self, x):
            self.runs += 1
            x = self.twice(self.norm(self.twice(self.first(x)).tanh()))
            return self.last(self.frozen(x).tanh())

    model = Drawn()
    return model, torch.randn(random.randint(2, 5), random.randint(6, 9), model.first.in_features)


def counted(model, x) -> int:
    """PyTorch's own count of a forward and a backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x).square().mean().backward()
    model.zero_grad()
    return counter.get_total_flops()


def run_count_flops(function):
    for what, freeze_first in (("a model with one frozen layer", False), ("and with its first layer frozen", True)):
        model, x = drawn_model()
        model.first.requires_grad_(not freeze_first)
        wanted = counted(model, x)
        model.runs = 0
        got = function(model, x)
        yield expect_close(f"{what}: your count ÷ PyTorch's", got / wanted if isinstance(got, int | float) else got,
                           1.0, atol=0, note="Each use of a layer is one product forward. Backward makes one for the "
                                        "gradient of its input and one for that of its weight: where each is needed. "
                                        "How many rows does a product have when x is [B, T, features]?")
        hooks = sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in model.modules())
        yield expect_equal(f"{what}: hooks left behind", hooks, 0,
                           note="The next count of this model would count everything twice. What removes a hook, also "
                                "when the forward pass fails?")
        yield expect_at_most(f"{what}: forward passes", model.runs, 1, note="One forward pass sees every product.")
        yield expect_equal(f"{what}: gradients left behind", sum(p.grad is not None for p in model.parameters()), 0,
                           note="No backward pass is needed: which tensors want gradients is known in forward.")


def broken_count(times=lambda x, w: 1 + x.requires_grad + w.requires_grad, rows=lambda x: x[..., 0].numel(),
                 once=False, keep=False, grad=True):
    def count_flops(model, x):
        import torch

        uses, hooks = [], []
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                hooks.append(layer.register_forward_hook(lambda layer, inputs, output: uses.append(
                    (layer, 2 * rows(inputs[0]) * layer.weight.numel() * times(inputs[0], layer.weight)))))
        with torch.set_grad_enabled(grad):
            model(x)
        for hook in [] if keep else hooks:
            hook.remove()
        return sum(dict(uses).values() if once else (flops for _, flops in uses))
    return count_flops


def by_running(model, x):
    wanted = counted(model, x)
    model(x).sum().backward()
    return wanted
