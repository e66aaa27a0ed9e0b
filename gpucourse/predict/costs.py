"""What one block, and head with loss, keep and need: the tape played over our network's lists of operations."""

from dataclasses import dataclass
from functools import cache

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import lora, network, tape
from gpucourse.predict import recompute as recomputation
from gpucourse.predict.axes import Axes
from gpucourse.predict.sizes import UNKNOWN, Size, size
from gpucourse.predict.tape import High, Left, Op


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

    keeps_stream: whether the last block's output is still needed once the model has returned. returned: what the head
    proper keeps, and the gradient of what the model has returned.
    """

    kept: Size
    returned: Size
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
def operations(shape: Shape, precision: Precision, axes: Axes, adapted: bool, first: bool) -> tuple[Op, ...]:
    """A block's, of however many tokens. adapted: its matrices are frozen, and have adapters."""
    ops = network.block(shape, precision, axes)
    if adapted:
        ops = lora.adapted(ops, {network.STREAM: stream(precision, axes)}, precision)
        ops = lora.without_gradient(ops, network.STREAM if first else "")
    return tuple(ops)


@cache
def saved(shape: Shape, precision: Precision, axes: Axes, recompute: str, adapted: bool,
          first: bool) -> tuple[Size, Left, Size, bool]:
    """What a block keeps when nothing is recomputed; what it leaves, as names and in bytes; whether its input too."""
    ops, given = operations(shape, precision, axes, adapted, first), {network.STREAM: stream(precision, axes)}
    kept, left, whole = tape.kept(ops), recomputation.left(ops, recompute), recompute in recomputation.WHOLE
    stays = tape.size_of(ops, left, given)
    return (tape.size_of(ops, kept, given), left, given[network.STREAM] + stays if whole else stays,
            whole or network.STREAM in kept.tensors)


@cache
def block(shape: Shape, precision: Precision, axes: Axes, tokens: int, recompute: str, again: bool,
          lent: bool = False, rank: int = 0, first: bool = False) -> Block:
    """A block's costs for `tokens` in a forward pass. recompute: none, attention, op, op-2 or full.

    again: gradients exist already. lent: the gradient of its output belongs to someone else, who holds it all the
    while. rank: of adapters on frozen matrices, 0 for none; then nobody asks the first block for a gradient.
    """
    dims, adapted = axes.values(shape, tokens, rank), bool(rank)
    kept, _, stays, keeps_stream = saved(shape, precision, axes, recompute, adapted, first)
    forward, backward = block_highs(shape, precision, axes, recompute, again, lent, adapted, first)
    return Block(kept, stays, keeps_stream, tape.highest_at(forward, dims), tape.highest_at(backward, dims))


@cache
def block_highs(shape: Shape, precision: Precision, axes: Axes, recompute: str, again: bool, lent: bool, adapted: bool,
                first: bool) -> tuple[tuple[High, ...], tuple[High, ...]]:
    """What can be the highest moments of a block, forward and backward, of however many tokens."""
    ops, given = operations(shape, precision, axes, adapted, first), {network.STREAM: stream(precision, axes)}
    _, left, _, _ = saved(shape, precision, axes, recompute, adapted, first)
    again_run = recomputation.replay(ops, UNKNOWN, recompute)
    return (tape.candidates(tape.forward(ops, UNKNOWN, left)),
            tape.candidates(tape.backward(ops, UNKNOWN, given, again, lent, again_run)))


@cache
def head(shape: Shape, precision: Precision, axes: Axes, tokens: int, widened: bool, again: bool,
         frozen: bool = False) -> Head:
    """The head's costs; widened: the model itself hands out fp32 logits. frozen: it is not trained."""
    dims = axes.values(shape, tokens)
    kept, returned, keeps_stream, highs = head_highs(shape, precision, axes, widened, again, frozen)
    return Head(kept, returned, keeps_stream, *(tape.highest_at(some, dims) for some in highs))


@cache
def head_highs(shape: Shape, precision: Precision, axes: Axes, widened: bool, again: bool,
               frozen: bool) -> tuple[Size, Size, bool, tuple[tuple[High, ...], ...]]:
    """Of however many tokens: what head and loss keep, what is alive when the model has returned, whether the stream
    is; and what can be the highest moments of the head and of the loss forward, of the loss and of the head backward.
    """
    model, loss = network.head(shape, precision, axes, widened)
    model = lora.frozen_head(model) if frozen else model
    kept, given, of_loss = tape.kept(model + loss), {network.STREAM: stream(precision, axes)}, {op.name for op in loss}
    returned = tape.size_of(model, tape.kept(model), given) + model[-1].size

    def apart(highs: list[High], of_loss: set[str]) -> tuple[tuple[High, ...], tuple[High, ...]]:
        mine = [high for high in highs if high.at.partition(":")[0] not in of_loss]
        return tape.candidates(mine), tape.candidates([high for high in highs if high not in mine])

    # fully_shard still holds a buffer while it widens the logits, and gathers again only once they have a gradient; but
    # the model itself has returned, and let go of its stream.
    in_forward, keeps_stream = of_loss - {network.WIDE_LOGITS} if widened else of_loss, network.STREAM in kept.tensors
    gone = 0 if keeps_stream else given[network.STREAM]
    highs = [High(high.bytes - gone, high.at) if widened and high.at == network.WIDE_LOGITS else high
             for high in tape.forward(model + loss, UNKNOWN, kept)]
    forward, loss_forward = apart(highs, in_forward)
    backward, loss_backward = apart(tape.backward(model + loss, UNKNOWN, given, again), of_loss)
    size = tape.size_of(model + loss, kept, given)
    return size, returned, keeps_stream, (forward, loss_forward, loss_backward, backward)
