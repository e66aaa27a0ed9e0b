"""What one block costs in memory: kept for backward, kept when it is recomputed, and on top while backward runs."""

from dataclasses import dataclass

import torch

from gpucourse.measure.live_storages import LiveStorages
from gpucourse.measure.saved_tensors import SavedTensors


@dataclass(frozen=True)
class BlockCost:
    """Bytes. saved: what forward leaves for backward, the block's input included. input: the input alone.

    work: the most that backward has on top of `saved`, the gradient that comes in included.
    """

    saved: int
    input: int
    work: int


def block_cost(block: torch.nn.Module, x: torch.Tensor, *more, again: bool = False) -> BlockCost:
    """The cost of `block(x, *more)`, whose result has the shape of `x`; on real or on fake tensors.

    again: gradients exist already, as after an earlier micro-batch, and are added to.
    """
    tables = [tensor for part in more if part is not None for tensor in part]
    x = x.detach().requires_grad_()
    if again:
        block(x, *more).sum().backward()
        x.grad = None
    with LiveStorages() as live:
        live.own(block, x, *tables)
        with SavedTensors(block, *tables) as saved:
            scaled = block(x, *more) * 1  # the product's backward makes a gradient that nothing but autograd holds
        loss = scaled.sum()
        del scaled
        before = live.live
        live.peak = before
        loss.backward()
    return BlockCost(saved.bytes, x.nbytes, live.peak - before)
