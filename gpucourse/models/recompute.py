"""Which blocks of a model keep what they save, and which are run again during backward."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpucourse.errors import BadInput, unknown

WORDS = ("none", "op", "full")
aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default})
# Scaled dot-product attention by each of its kernels that do not keep the scores.
ATTENTION = frozenset({
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default,
})


def place(model: nn.Module, plan: Sequence[str], note: Callable[[Tensor], object] | None = None) -> nn.Module:
    """Set for each block of a Transformer, first to last, what backward finds: `none` of it recomputed, `full`: all of
    it from its input, `op`: all but matrix products and attention. Changes the model and returns it.

    note: called with each tensor that `op` keeps.
    """
    if len(plan) != len(model.blocks):
        raise BadInput(f"the plan has {len(plan)} words for {len(model.blocks)} blocks; give one of "
                       f"{', '.join(WORDS)} for each")
    for block, word in zip(model.blocks, plan, strict=True):
        if word not in WORDS:
            raise unknown("recompute", word, WORDS)
        vars(block).pop("forward", None)  # a plan replaces an earlier one
        if word != "none":
            block.forward = recomputed(block.forward, word, note)
    model.recompute = ["none"] * len(plan)  # the plan is in the blocks now
    return model


def recomputed(forward: Callable, word: str, note: Callable[[Tensor], object] | None = None,
               preserve_rng_state: bool = True) -> Callable:
    """`forward`, run again in backward: all of it (`full`), or all but products and attention (`op`).

    `op-2`: of the products only the first, the third and so on are kept.

    preserve_rng_state: draw the same random numbers again; what draws none need not keep the generator's state.
    """
    how = dict(use_reentrant=False, preserve_rng_state=preserve_rng_state)
    if word != "full":
        how["context_fn"] = partial(contexts, 2 if word == "op-2" else 1, note)
    return partial(checkpoint, forward, **how)


def contexts(every: int, note: Callable[[Tensor], object] | None):
    """For one run of a block and its repetition: which results are kept; products are counted from 0."""
    return create_selective_checkpoint_contexts(partial(keep_products, every, count(), note))


def keep_products(every: int, numbers: Iterator[int], note: Callable[[Tensor], object] | None, context, operation,
                  *args, **kwargs) -> CheckpointPolicy:
    dear = operation in ATTENTION or operation in PRODUCTS and next(numbers) % every == 0
    if not dear:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if note is not None:
        made = context.op_output
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                note(tensor)
    return CheckpointPolicy.MUST_SAVE


class Segment(nn.Module):
    """Several blocks that are recomputed as one."""

    def __init__(self, blocks: Sequence[nn.Module]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, rotary)
        return x


def segments(model: nn.Module, length: int) -> nn.Module:
    """Keep only the input of every `length`-th block, and run that many blocks again from it. Changes the model."""
    blocks = list(model.blocks)
    model.blocks = nn.ModuleList(Segment(blocks[i:i + length]) for i in range(0, len(blocks), length))
    return place(model, ["full"] * len(model.blocks))
