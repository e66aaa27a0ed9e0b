"""What one block, and head with loss, keep and need where a backward comes in halves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import costs, halves, lora, network, tape
from gpucourse.predict.axes import Axes
from gpucourse.predict.sizes import UNKNOWN, Size, total
from gpucourse.predict.tape import High, Op


@dataclass(frozen=True)
class Halves:
    """Formulas, of however many tokens.

    for_input: what can be the highest moment in that half; owed: what it adds to what forward left, the gradient of the
    input among it; gone: what of the graph goes when all of the half is over, where nothing above it has parameters;
    holds: whether it has any itself. for_weights: what can be the highest moment in the other half, and after: what
    this adds.
    """

    for_input: tuple[High, ...]
    owed: Size
    gone: Size
    holds: bool
    for_weights: tuple[High, ...]
    after: Size


@cache
def block_halves(shape: Shape, precision: Precision, axes: Axes, rank: int, again: bool, received: bool = False,
                 lent: bool = False) -> Halves:
    """received: its input came from another stage. lent: so did the gradient of its output.

    No block is the model's first, which has no half for the input.
    """
    ops = costs.operations(shape, precision, axes, bool(rank), first=False)
    return of(ops, {network.STREAM: costs.stream(precision, axes)}, again, received, lent)


@cache
def head_halves(shape: Shape, precision: Precision, axes: Axes, widened: bool, again: bool, frozen: bool) -> Halves:
    model, loss = network.head(shape, precision, axes, widened)
    ops = [*(lora.frozen_head(model) if frozen else model), *loss]
    return of(ops, {network.STREAM: costs.stream(precision, axes)}, again)


def of(ops: Sequence[Op], given: Mapping[str, Size], again: bool, received: bool = False, lent: bool = False) -> Halves:
    *for_input, end = tape.backward(list(halves.for_input(ops, given)), UNKNOWN, given, lent=lent, ending=True)
    for_weights, after = halves.for_weights(ops, UNKNOWN, given, again, received)
    gone = list(halves.unheld(ops, given))
    return Halves(tape.candidates(for_input), end.bytes, tape.size_of(gone, tape.kept(gone), given),
                  bool(halves.holders(ops, given)), tape.candidates(for_weights), total([after]))
