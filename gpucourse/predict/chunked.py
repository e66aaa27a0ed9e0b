"""Head and loss in parts of the tokens: what is alive while one part is worked on, and while the parts' gradients meet.

Backward runs each part's forward again. All parts use one output matrix: its gradients are added up, and become the
matrix's own once the last part has given its. Each part also gives the gradient of its rows of the hidden states.
"""

from collections.abc import Iterator
from functools import cache
from math import ceil

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import lora, network, recompute, tape
from gpucourse.predict.axes import Axes
from gpucourse.predict.costs import Head, stream
from gpucourse.predict.sizes import size
from gpucourse.predict.tape import High, Left, Op


@cache
def head_in_parts(shape: Shape, precision: Precision, axes: Axes, tokens: int, parts: int, again: bool, tied: bool,
                  frozen: bool = False) -> Head:
    """The head's costs where the loss belongs to the model. again: gradients exist already.

    tied: the matrix's gradient waits for the one that the embedding will give. frozen: nothing here is trained.
    """
    norm, part = operations(shape, precision, axes, frozen)
    dims = axes.values(shape, tokens)
    given, kept = {network.STREAM: stream(precision, axes)}, tape.kept(norm)
    inside, all_of_it = (tape.size_of(norm, Left(kept.tensors | {network.NORMED}, kept.asides), outside)
                         for outside in ({}, given))
    some = axes.values(shape, ceil(tokens / parts))
    forward = [*tape.forward(norm, dims, kept),
               *(High(inside.at(dims) + high.bytes, high.at) for high in tape.forward(part, some, Left()))]
    nothing = High(0, "")
    return Head(all_of_it, all_of_it, network.STREAM in kept.tensors, tape.highest(forward), nothing, nothing,
                tape.highest(backward(shape, precision, axes, tokens, parts, again, tied, frozen)))


@cache
def operations(shape: Shape, precision: Precision, axes: Axes, frozen: bool) -> tuple[list[Op], list[Op]]:
    """Those of the final norm, and those of one part."""
    norm, part = network.head_norm(shape, precision), network.part_of_loss(precision, axes)
    return (lora.frozen_head(norm), lora.frozen_head(part)) if frozen else (norm, part)


def backward(shape: Shape, precision: Precision, axes: Axes, tokens: int, parts: int, again: bool, tied: bool,
             frozen: bool) -> Iterator[High]:
    """The highest moments of the last part, which finds most of the others' results; then those of the norm."""
    dims, rows = axes.values(shape, tokens), ceil(tokens / parts)
    some, count = axes.values(shape, rows), ceil(tokens / rows)
    hidden, matrix = size("n h", precision.weights), f"h {axes.part('V')}"
    width = precision.compute if precision.autocast else precision.gradients
    # One part's gradient of the matrix, or the sum so far.
    waiting = 0 if frozen else size(matrix, width).at(dims)
    others = hidden.at(dims) - hidden.at(some)  # the other parts' gradients of their rows
    given, (norm, part) = {network.NORMED: hidden}, operations(shape, precision, axes, frozen)
    product = next(i for i, op in enumerate(part) if op.kind)
    casts = {op.name for op in part[:product]}
    gone = others - hidden.at(dims)  # nobody needs the hidden states themselves once the last product is done
    after = gone if precision.autocast else 0  # where the product itself has saved its rows, they are counted as gone
    for high in tape.backward(part, some, given, again, replay=recompute.replay(part, some, "full")):
        yield High(high.bytes + (after if high.at in casts else others + waiting * (count > 1)), high.at)
    of_rows, adding = size("n h", precision.compute).at(some), "adding the parts' gradients"
    yield High(gone + of_rows + waiting * (3 if count > 1 else 1), adding)
    if count > 2:  # the part before: others have given one part less, and the hidden states are there
        yield High(others - hidden.at(some) + of_rows + waiting * 3, adding)
    table = 0 if frozen or again and not tied else size(matrix, precision.gradients).at(dims)
    yield High(table + hidden.at(dims), "joining the parts' gradients")  # twice, and the hidden states are gone
    for high in tape.backward(norm, dims, {network.STREAM: stream(precision, axes)}, again):
        yield High(table + high.bytes, high.at)
