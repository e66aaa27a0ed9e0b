"""Gradients that stay unsharded from one micro-batch to the next: FSDP's accumulation without reduction.

With set_requires_gradient_sync(False) fully_shard leaves a unit's gradients whole on every rank, in the precision that
it would reduce them in, until the micro-batch that reduces; sharded ones exist only after that.
"""

from gpucourse.predict.step import Step
from gpucourse.predict.tensors import count

SOURCE = "torch.distributed.fsdp, set_requires_gradient_sync(False) before the last micro-batch"


def before(step: Step) -> int:
    """Bytes during forward: all of them, but none in a first micro-batch."""
    if not step.reduces and step.job.accumulate == 2:
        return 0  # of two, the one that does not reduce is the first
    return step.piled_width * count(step.trained.in_order(step.part.layers))


def during(step: Step, blocks: int) -> int:
    """Bytes in backward when the head and the top `blocks` blocks have given theirs."""
    width, layers = step.piled_width, step.part.layers
    new = step.precision.gradients * count(step.trained.final_norm + step.trained.head)
    top, below = layers[len(layers) - blocks:], layers[:len(layers) - blocks]
    if step.reduces:  # those of the top blocks are shared out
        return width * (count(step.trained.ends_gradients) + of_blocks(step, below)) + new * (width != _low(step))
    if step.job.accumulate == 2:
        return width * of_blocks(step, top) + new
    return before(step) + new * (width != _low(step))


def at_the_end(step: Step) -> int:
    """Bytes of what belongs to no block, when its last gradients have just been made."""
    ends = count(step.trained.ends_gradients)
    both = _low(step) + step.piled_width * (step.piled_width != _low(step))
    if step.reduces:
        return both * ends
    first = step.job.accumulate == 2
    return step.piled_width * of_blocks(step, step.part.layers) + (_low(step) if first else both) * ends


def converting(step: Step) -> int:
    """The same while a first micro-batch's are cast to the precision in which they wait: all, and the last uncast."""
    everything = step.piled_width * count(step.trained.in_order(step.part.layers))
    return everything + _low(step) * count(step.trained.ends[-1:]) * (step.piled_width != _low(step))


def of_blocks(step: Step, layers: range) -> int:
    dense, others = step.trained.among(layers)
    return dense * count(step.trained.dense) + others * count(step.trained.block)


def _low(step: Step) -> int:
    return step.precision.gradients
