"""Say when a training step passes from one instant to the next (evidence.INSTANTS)."""

from collections.abc import Callable

import torch

from gpucourse.models.transformer import Transformer

# Blocks between the last and the first, which together are evidence.MIDDLE.
SECOND, INNER, BEFORE_LAST = MIDDLES = ("second block", "inner blocks", "block before the last")


def follow(model: Transformer, mark: Callable[[str], None]) -> None:
    """Register hooks on `model` that call `mark(instant)` during forward and backward.

    `loss` begins at the final norm and ends when the last block's output has its gradient; each block's own instant
    begins there. A forward that backward runs again (recompute) marks nothing.
    """

    def at_gradient(instant: str):
        def forward_hook(module, inputs, output):
            if in_forward() and output.requires_grad:
                output.register_hook(lambda gradient: mark(instant))
        return forward_hook

    if model.norm is not None:
        model.norm.register_forward_pre_hook(lambda module, inputs: mark("loss") if in_forward() else None)
    last = len(model.blocks) - 1
    for i, block in enumerate(model.blocks):
        name = {1: SECOND, last - 1: BEFORE_LAST, 0: "first block", last: "last block"}.get(i, INNER)
        block.register_forward_hook(at_gradient(name), prepend=True)  # a block's instant holds its own all-gather
    if model.embedding is not None:
        model.embedding.register_forward_hook(at_gradient("embedding"))


def in_forward() -> bool:
    """True outside of a backward pass on this thread."""
    return torch._C._current_graph_task_id() == -1
