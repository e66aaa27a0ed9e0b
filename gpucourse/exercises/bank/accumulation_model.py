"""What the checks of accumulated gradients train: a small model, and micro-batches with unequal token counts."""

from collections.abc import Callable

IGNORED = -100  # the target of a token that is not trained on
VOCABULARY, TOKENS = 40, 24


def small_model(dtype=None):
    import torch

    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 12), torch.nn.Linear(12, 48), torch.nn.Tanh(),
                                torch.nn.Linear(48, VOCABULARY))
    return model.to(dtype or torch.float64)


def micro_batches(count: int, sequences: int, untrained: int = -1):
    """`count` of (tokens, targets), [sequences, TOKENS]; all of `untrained` is left out of the loss."""
    import torch

    made = []
    for place in range(count):
        tokens = torch.randint(VOCABULARY, (sequences, TOKENS))
        targets = torch.randint(VOCABULARY, (sequences, TOKENS))
        first = torch.randint(1, TOKENS, (sequences, 1))
        first = torch.full_like(first, TOKENS) if place == untrained else first
        made.append((tokens, targets.masked_fill(torch.arange(TOKENS) < first, IGNORED)))
    return made


def loss_of(model, tokens, targets, reduction="sum"):
    import torch.nn.functional as F

    logits = model(tokens).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction=reduction)


def trained(window) -> int:
    return sum((targets != IGNORED).sum().item() for _, targets in window)


def gradients(model):
    """All gradients in one vector, zeros where there are none; the model's own are cleared."""
    import torch

    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


def whole(model, window) -> float:
    """The window as one batch: the reference."""
    import torch

    tokens, targets = (torch.cat(part) for part in zip(*window, strict=True))
    loss = loss_of(model, tokens, targets, "mean")
    loss.backward()
    return loss.item()


def backward_of(divisor: Callable):
    """A window taken with each micro-batch's summed loss divided by divisor(window, targets)."""
    def accumulate_window(model, window) -> float:
        total = 0.0
        for tokens, targets in window:
            loss = loss_of(model, tokens, targets) / divisor(window, targets)
            loss.backward()
            total += loss.item()
        return total
    return accumulate_window


weighted = backward_of(lambda window, targets: trained(window))
mean_of_means = backward_of(lambda window, targets: max(1, trained([(None, targets)])) * len(window))
every_position = backward_of(lambda window, targets: sum(t.numel() for _, t in window))
a_sum = backward_of(lambda window, targets: 1)


class Passes:
    """Counts how often gradients have been added to the last parameter of a model."""

    def __init__(self, model):
        self.count = 0
        *_, last = model.parameters()
        last.register_post_accumulate_grad_hook(self.add)

    def add(self, parameter) -> None:
        self.count += 1
