"""A training whose loss is given: what is done with the hidden states and the output matrix is the lesson's."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpucourse.models.training import Training

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class PassOn(nn.Module):
    """Holds the output matrix and leaves its product to the loss."""

    def __init__(self, weight: nn.Parameter):
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


def with_loss(training: Training, loss: Loss) -> Training:
    """Make a training compute `loss(hidden, weight, targets)`: hidden [n, H], weight [V, H], targets [n] int64.

    Changes the training and returns it.
    """
    model = training.model
    weight = model.head.weight
    model.head = PassOn(weight)

    def whole(tokens: Tensor, targets: Tensor) -> Tensor:
        low = training.autocast
        with torch.autocast(torch.device(training.device).type, low, enabled=low is not None):
            return loss(model(tokens).flatten(0, 1), weight, targets.flatten())

    training.loss = whole
    return training
