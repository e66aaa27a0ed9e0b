"""Check of 04.3: a dynamic loss scaler, played through overflows, beside gradients that were never scaled."""

import random
from collections.abc import Callable

from gpucourse.exercises.bank.precision_looks import looks_at_values
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


class PlayedTraining:
    """Weights with drawn gradients under a learner's scaler, beside the same weights with the gradients as they are."""

    def __init__(self, make: Callable, interval: int, weights: int = 3):
        import torch

        shapes = [(7,), (3, 5), (11,), *[(2,)] * weights][:weights]
        self.weights = [torch.randn(shape, requires_grad=True) for shape in shapes]
        self.true = [w.detach().clone().requires_grad_() for w in self.weights]
        unused = torch.zeros(3, requires_grad=True)  # has no gradient
        self.optimizer, self.twin = (torch.optim.SGD([*group, unused], lr=0.1, momentum=0.9)
                                     for group in (self.weights, self.true))
        self.scaler = make(2.0**12, interval)

    def step(self, bad: float | None = None) -> bool | None:
        """One step; `bad` is put into one place of one gradient."""
        import torch

        for weight, twin in zip(self.weights, self.true, strict=True):
            twin.grad = torch.randn_like(weight)
            weight.grad = twin.grad * float(self.scaler.scale)
        if bad is None:
            self.twin.step()
        else:  # never in the last gradient, which is the one that a careless check looks at
            random.choice(self.weights[:-1]).grad.view(-1)[-1] = bad
        stepped = self.scaler.step(self.optimizer)
        return None if stepped is None else bool(stepped)

    @property
    def scale(self) -> float:
        return float(self.scaler.scale)

    def apart(self) -> list[float]:
        """The largest difference from the twin, for each weight."""
        return [(w - t).abs().max().item() for w, t in zip(self.weights, self.true, strict=True)]


def run_loss_scaler(make):
    interval = random.choice((3, 4, 5))
    played = PlayedTraining(make, interval)
    taken = [played.step() for _ in range(2)]
    yield expect_equal("good steps are taken", taken, [True, True], note="`step` returns whether it stepped.")
    yield expect_close("weights after them, against gradients that were never scaled", played.apart(), [0.0] * 3,
                       atol=1e-5, note="The optimizer saw gradients that are still multiplied by the scale.")
    for name, bad in (("inf", float("inf")), ("-inf", -float("inf")), ("nan", float("nan"))):
        before = played.scale
        yield expect_equal(f"a step with one {name} is skipped", played.step(bad), False,
                           note="One value that is not finite, in any gradient, spoils the step.")
        yield expect_close(f"weights after {name}: as they were", played.apart(), [0.0] * 3, atol=1e-5,
                           note="A skipped step changes nothing. With gradients of zero it is still a step: momentum "
                                "moves the weights.")
        yield expect_close(f"the scale after {name}, relative to before", played.scale / before, 0.5, atol=0,
                           note="A bad step halves the scale.")
    played.step()
    yield expect_close("weights after one more good step", played.apart(), [0.0] * 3, atol=1e-5,
                       note="The optimizer's state after skipped steps is not what it was.")
    fresh = PlayedTraining(make, interval)
    trace = [(fresh.step(), fresh.scale / 2.0**12)[1] for _ in range(2 * interval)]
    yield expect_close(f"the scale over {2 * interval} good steps, interval {interval}", trace,
                       [1.0] * (interval - 1) + [2.0] * interval + [4.0], atol=0,
                       note="After `interval` good steps in a row the scale doubles, and the count begins anew.")
    fresh = PlayedTraining(make, interval)
    steps = [None] * (interval - 1) + [float("inf")] + [None] * interval
    trace = [(fresh.step(bad), fresh.scale / 2.0**12)[1] for bad in steps]
    yield expect_close("the scale when an overflow comes just before it would double", trace,
                       [1.0] * (interval - 1) + [0.5] * interval + [1.0], atol=0,
                       note="In a row: a bad step sets the count of good ones back to none.")
    many = PlayedTraining(make, interval, weights=40)
    yield expect_at_most("looks at values in a step with 40 weights", looks_within_a_step(many), 1, "",
                         note="Each look waits for the device. Put the answers for all gradients into one tensor.")


def looks_within_a_step(played: PlayedTraining) -> int:
    import torch

    for weight in played.weights:
        weight.grad = torch.ones_like(weight)
    with looks_at_values() as counted:
        played.scaler.step(played.optimizer)
    return counted.looks


def broken_scaler(unscale=True, looks="all", skip="skip", grow=True, reset=True, halve=True, one_look=True):
    class LossScaler:
        def __init__(self, scale, interval):
            self.scale, self.interval, self.good = scale, interval, 0

        def step(self, optimizer):
            import torch

            weights = [w for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
            if unscale:
                for weight in weights:
                    weight.grad /= self.scale
            seen = weights[-1:] if looks == "last" else weights
            bad = [w.grad.isnan().any() if looks == "nan" else ~w.grad.isfinite().all() for w in seen]
            overflow = torch.stack(bad).any().item() if one_look else any(b.item() for b in bad)
            if overflow:
                if halve:
                    self.scale /= 2
                if reset:
                    self.good = 0
                if skip == "zero":
                    for weight in weights:
                        weight.grad.zero_()
                if skip != "skip":
                    optimizer.step()
                return False
            optimizer.step()
            self.good += 1
            if grow and self.good == self.interval:
                self.scale, self.good = self.scale * 2, 0
            return True
    return LossScaler
