"""What one block, and head with loss, keep and need: the tape played over our network's lists of operations."""

from dataclasses import dataclass
from functools import cache

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import lora, network, tape
from gpucourse.predict import recompute as recomputation
from gpucourse.predict.axes import Axes
from gpucourse.predict.sizes import Size, size
from gpucourse.predict.tape import High


@dataclass(frozen=True)
class Block:
    """kept: what it leaves for backward when nothing is recomputed. stays: what it does leave, bytes.

    keeps_stream: whether its input is part of what it leaves.

    forward, backward: its highest moments; the one of backward is above what stays and, where something is recomputed,
    has in it what that brings back.
    """

    kept: Size
    stays: Size
    keeps_stream: bool
    forward: High
    backward: High


@dataclass(frozen=True)
class Head:
    """Highest moments of the head proper (norm, output matrix) and of the loss, which comes after the model.

    keeps_stream: whether the last block's output is still needed once the model has returned.
    """

    kept: Size
    keeps_stream: bool
    forward: High
    loss_forward: High
    loss_backward: High
    backward: High


@cache
def stream(precision: Precision, axes: Axes) -> Size:
    """The residual stream, as blocks hand it on."""
    return size(f"{axes.stream} h", precision.weights)


@cache
def block(shape: Shape, precision: Precision, axes: Axes, tokens: int, recompute: str, again: bool,
          lent: bool = False, rank: int = 0, first: bool = False) -> Block:
    """A block's costs for `tokens` in a forward pass. recompute: none, attention, op, op-2 or full.

    again: gradients exist already. lent: the gradient of its output belongs to someone else, who holds it all the
    while. rank: of adapters on frozen matrices, 0 for none; then nobody asks the first block for a gradient.
    """
    ops, dims = network.block(shape, precision, axes), axes.values(shape, tokens)
    given = {network.STREAM: stream(precision, axes)}
    if rank:
        ops = lora.without_gradient(lora.adapted(ops, given, precision), network.STREAM if first else "")
        dims[lora.RANK] = rank
    kept, left, whole = tape.kept(ops), recomputation.left(ops, recompute), recompute in recomputation.WHOLE
    stays = tape.size_of(ops, left, given)
    return Block(
        kept=tape.size_of(ops, kept, given),
        stays=stream(precision, axes) + stays if whole else stays,
        keeps_stream=whole or network.STREAM in kept.tensors,
        forward=tape.highest(tape.forward(ops, dims, left)),
        backward=tape.highest(tape.backward(ops, dims, given, again, lent,
                                            recomputation.replay(ops, dims, recompute))),
    )


@cache
def head(shape: Shape, precision: Precision, axes: Axes, tokens: int, widened: bool, again: bool,
         frozen: bool = False) -> Head:
    """The head's costs; widened: the model itself hands out fp32 logits. frozen: it is not trained."""
    model, loss = network.head(shape, precision, axes, widened)
    if frozen:
        model = lora.frozen_head(model)
    dims, given = axes.values(shape, tokens), {network.STREAM: stream(precision, axes)}
    of_loss = {op.name for op in loss}

    def apart(highs: list[High], of_loss: set[str]) -> tuple[High, High]:
        mine = [high for high in highs if high.at.partition(":")[0] not in of_loss]
        return tape.highest(mine), tape.highest(high for high in highs if high not in mine)

    # fully_shard still holds a buffer while it widens the logits, and gathers again only once they have a gradient.
    in_forward = of_loss - {network.WIDE_LOGITS} if widened else of_loss
    kept = tape.kept(model + loss)
    forward, loss_forward = apart(tape.forward(model + loss, dims, kept), in_forward)
    backward, loss_backward = apart(tape.backward(model + loss, dims, given, again), of_loss)
    return Head(tape.size_of(model + loss, kept, given), network.STREAM in kept.tensors, forward, loss_forward,
                loss_backward, backward)
