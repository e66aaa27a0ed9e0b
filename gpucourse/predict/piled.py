"""Gradients that stay unsharded from one micro-batch to the next: FSDP's accumulation without reduction.

With set_requires_gradient_sync(False) fully_shard leaves a unit's gradients whole on every rank, in the precision that
it would reduce them in, until the micro-batch that reduces; sharded ones exist only after that.
"""

from collections.abc import Iterable

from gpucourse.predict.step import Step
from gpucourse.predict.tensors import Tensor, count

SOURCE = "torch.distributed.fsdp, set_requires_gradient_sync(False) before the last micro-batch"


def before(step: Step) -> int:
    """Bytes during forward: all of them, but none in a first micro-batch."""
    return everything(step) + uncast(step, step.part.layers) if step.finds else 0


def uncast(step: Step, layers: range) -> int:
    """Bytes of those that the weights' half of a backward has made of `layers` and, where those are all, of what is
    outside of them: they wait in the precision in which they were made until the next backward passes by."""
    if not step.uncast or step.piled_width == _low(step):
        return 0
    ends = count(step.trained.ends_gradients) if layers == step.part.layers else 0
    return _low(step) * (step.trained.in_blocks(layers) + ends)


def everything(step: Step) -> int:
    """Bytes of all of them."""
    of = step.all_trained
    return step.piled_width * (count(of.ends_gradients) + of.in_blocks(step.rank.layers))


def during(step: Step, blocks: int) -> int:
    """Bytes in backward when the head and the top `blocks` blocks have given theirs."""
    width, layers, trained = step.piled_width, step.part.layers, step.trained
    new = step.precision.gradients * count(trained.final_norm + trained.head)
    top, below = layers[len(layers) - blocks:], layers[:len(layers) - blocks]
    if step.reduces:  # those of the top blocks are shared out
        return width * (count(trained.ends_gradients) + trained.in_blocks(below)) + new * (width != _low(step))
    if not step.finds:
        return width * trained.in_blocks(top) + new
    return before(step) + new * (width != _low(step))


def at_the_end(step: Step) -> int:
    """Bytes of what belongs to no block, when its last gradients have just been made."""
    ends = count(step.trained.ends_gradients)
    both = _low(step) + step.piled_width * (step.piled_width != _low(step))
    if step.reduces:
        return both * ends
    if step.finds:
        return everything(step) + (both - step.piled_width) * ends
    return step.piled_width * step.trained.in_blocks(step.part.layers) + _low(step) * ends


def converting(step: Step) -> int:
    """The same while a first micro-batch's are cast, one after another, to the precision in which they wait."""
    width, low = step.piled_width, _low(step)
    ends = step.trained.ends_gradients
    return width * (step.trained.in_blocks(step.part.layers) + count(ends)) + casting(ends, width, low)


def casting(tensors: Iterable[Tensor], width: int, low: int) -> int:
    """Bytes above all cast ones: at the tensor that is cast both of it are there, and the later ones are not cast yet.
    """
    if width == low:
        return 0
    most, after = 0, 0
    for tensor in reversed(list(tensors)):
        most = max(most, low * count([tensor]) - (width - low) * after)
        after += count([tensor])
    return most


def _low(step: Step) -> int:
    return step.precision.gradients
