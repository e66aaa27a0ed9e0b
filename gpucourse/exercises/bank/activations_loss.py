"""Checks of 03.2 and 03.3: the logits, who holds them, and a loss that makes them in parts."""

import math
import random

from gpucourse.exercises.expect import expect_at_most, expect_close


def loss_coefficient(autocast: bool = False, held: bool = False, extra: bool = False, evaluate: bool = False) -> float:
    """Bytes for each token and word at the highest moment of a loss and its backward, counted on fake tensors."""
    import torch
    import torch.nn.functional as F

    from gpucourse import dryrun
    from gpucourse.measure import LiveStorages

    n, h, words = 64, 2, 4096
    with dryrun.fake():
        hidden = torch.randn(n, h, requires_grad=not evaluate)
        weight = torch.randn(words, h, requires_grad=not evaluate)
        targets = torch.zeros(n, dtype=torch.int64)
        with LiveStorages() as live, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            live.own(hidden, weight, targets)
            before = live.live
            logits = hidden @ weight.T
            loss = F.cross_entropy(logits, targets)
            kept = logits.detach().softmax(-1) if extra else None
            if not held:
                del logits
            if not evaluate:
                loss.backward()
            del kept
    return round((live.peak - before) / (n * words))


def run_lean_loss(function):
    """Values and gradients with ignored targets and a short last part; the peak; products of the head's size."""
    import torch
    import torch.nn.functional as F
    from torch.utils._python_dispatch import TorchDispatchMode

    from gpucourse.measure import LiveStorages

    class Products(TorchDispatchMode):
        """Counts the work of matrix products, in multiples of one product of the head."""

        count = 0.0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                left = args[-2]
                self.count += made.numel() * left.shape[-1] / (n * h * words)
            return made

    draw = random.Random()
    n, h, words, parts = 8 * draw.randint(40, 60) + 5, draw.randint(9, 14), draw.randint(1500, 1900), 8
    hidden = torch.randn(n, h).exp().requires_grad_()
    weight = (torch.randn(words, h) * 0.3).requires_grad_()
    targets = torch.randint(words, (n,))
    targets[torch.rand(n) < 0.1] = -100
    targets[: n // 4] = -100  # parts with unequal numbers of tokens, one with none
    twins = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    wanted = F.cross_entropy(twins[0] @ twins[1].T, targets)
    factor = draw.uniform(0.3, 3.0)
    (wanted * factor).backward()

    with LiveStorages() as live, Products() as products:
        live.own(hidden, weight, targets)
        before = live.live
        loss = function(hidden, weight, targets, parts)
        (loss * factor).backward()
    yield expect_close("the mean over the tokens that count", loss, wanted, atol=2e-5,
                       note="Divide once, by the number of targets that are not -100 in the whole batch: parts hold "
                            "different numbers of them.")
    for name, tensor, twin in (("hidden states", hidden, twins[0]), ("weight", weight, twins[1])):
        scale = twin.grad.abs().max().item()
        yield expect_close(f"the gradient of the {name}", tensor.grad / scale, twin.grad / scale, atol=2e-5,
                           note="A part's gradients are parts of the whole's: of the same mean, and times what arrives "
                                "in backward.")
    part = math.ceil(n / parts)
    yield expect_at_most("peak above the start", live.peak - before,
                         1.1 * 12 * part * words + 4 * 4 * words * h + 4 * 4 * n * h, "bytes",
                         reason="for the logits of one part and a few gradients",
                         note="More than one part's logits, or what was made of them, is alive at once. What keeps a "
                              "part after its turn?")
    yield expect_at_most("products of the head's size", products.count, 3.1, reason="for forward and two gradients",
                         note="Each part's logits are made twice. At the moment at which they exist, what else could "
                              "be made from them?")


def chunks(mean_of_means=False, count_all=False, again=True, arriving=True):
    def lean_loss(hidden, weight, targets, parts):
        import torch
        import torch.nn.functional as F
        from torch.utils.checkpoint import checkpoint

        def of_part(some, weight, of_them):
            return F.cross_entropy(some @ weight.T, of_them, reduction="sum")

        pairs = list(zip(hidden.chunk(parts), targets.chunk(parts), strict=True))
        if mean_of_means:
            return sum(torch.nan_to_num(F.cross_entropy(x @ weight.T, t)) for x, t in pairs) / parts
        run = (lambda *part: checkpoint(of_part, *part, use_reentrant=False)) if again else of_part
        count = len(targets) if count_all else (targets != -100).sum()
        return sum(run(x, weight, t) for x, t in pairs) / count
    return lean_loss


def whole_loss(hidden, weight, targets, parts):
    import torch.nn.functional as F

    return F.cross_entropy(hidden @ weight.T, targets)


def deaf_loss(hidden, weight, targets, parts):
    """Makes the gradients in forward, and forgets to multiply by what arrives."""
    import torch
    import torch.nn.functional as F

    class Deaf(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight):
            count, total, rows, table = (targets != -100).sum(), 0.0, [], torch.zeros_like(weight)
            for some, of_them in zip(hidden.chunk(parts), targets.chunk(parts), strict=True):
                with torch.enable_grad():
                    x, w = some.detach().requires_grad_(), weight.detach().requires_grad_()
                    part = F.cross_entropy(x @ w.T, of_them, reduction="sum") / count
                of_x, of_w = torch.autograd.grad(part, (x, w))
                total, table = total + part.detach(), table + of_w
                rows.append(of_x)
            ctx.save_for_backward(torch.cat(rows), table)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return ctx.saved_tensors

    return Deaf.apply(hidden, weight)
