"""The moments of a backward in halves: first the gradient of the stage's input, later those of its weights."""

from collections.abc import Iterator
from itertools import accumulate

from gpucourse.evidence import WEIGHTS
from gpucourse.predict import moments as at
from gpucourse.predict import piled
from gpucourse.predict.moments import Moment
from gpucourse.predict.step import Step
from gpucourse.predict.tape import highest_at

OWED = "owed to the weights' half"


def for_input(step: Step) -> Iterator[Moment]:
    """All that forward kept stays, and what each block and the head add to it."""
    common, waits, gradients = kept(step), 0, at.found(step)[0]
    if step.part.last:
        yield Moment("loss", common | {at.LOSS_BACKWARD: highest_at(step.head_halves.for_input, step.dims).bytes})
        waits = step.at(step.head_halves.owed) - step.stream
    for i in reversed(range(step.layers)):
        half, top = step.block_halves[i], i == step.layers - 1
        stream = step.stream * (step.part.last or not top)  # of another stage's gradient: it is the output's
        if i in step.told_apart:
            waiting = common[gradients] - piled.uncast(step, step.part.layers[i + 1:])
            yield Moment(at.instant(step, i), common | {at.STREAM: stream, OWED: waits, gradients: waiting,
                                                        at.BLOCK_BACKWARD: highest_at(half.for_input, step.dims).bytes})
        waits += step.at(half.owed) - (step.stream - stream)


def for_weights(step: Step) -> Iterator[Moment]:
    """From the first block to the head; what that does not pass through stays until it is over."""
    halves, common, gradients = step.block_halves, kept(step), at.found(step)[0]
    common[gradients] -= piled.uncast(step, step.part.layers)  # what is new is owed
    below = list(accumulate((step.at(half.after) for half in halves), initial=owed(step)))
    passed = [(below[i], halves[i]) for i in step.told_apart]
    for before, half in [*passed, (below[-1], step.head_halves)] if step.part.last else passed:
        yield Moment(WEIGHTS, common | {OWED: before + highest_at(half.for_weights, step.dims).bytes})


def kept(step: Step) -> dict[str, int]:
    """What is there from one half to the other, besides what the first adds."""
    head = {at.HEAD_KEPT: step.at(step.head.kept)} if step.part.last else {at.OUTPUT: 2 * step.stream}
    return {at.KEPT: step.kept_below[-1] + step.beside, **at.no_gradients(step), **head,
            at.GATHERED: step.units.ends + step.gathered_of(step.part.layers)}


def owed(step: Step) -> int:
    """Bytes that the half for the input leaves besides what forward left; the gradient of the input among them."""
    parts = [*step.block_halves, *([step.head_halves] if step.part.last else [])]
    top = len(parts) - 1 - next(i for i, half in enumerate(reversed(parts)) if half.holds)
    return sum(step.at(half.owed) for half in parts) - sum(step.at(half.gone) for half in parts[top:])
