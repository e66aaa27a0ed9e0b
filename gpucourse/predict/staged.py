"""Sharded weights in a pipeline, as torch.distributed.pipelining has them.

A stage runs each backward with set_reshard_after_backward(False) and set_requires_gradient_sync(False): what a backward
has gathered stays until a forward gives it back, and gradients stay whole. After the last micro-batch the schedule has
each unit give its weights back and share its gradients out, that of all outside of the blocks first.
"""

from collections.abc import Iterator

from gpucourse.predict import moments as at
from gpucourse.predict import piled
from gpucourse.predict.moments import Moment
from gpucourse.predict.step import Step
from gpucourse.predict.tensors import Tensor, count

SOURCE = "torch.distributed.pipelining, stage.backward_maybe_with_nosync and perform_reduce_grad"


def gathered(step: Step) -> dict[str, int]:
    """Bytes that a stage has gathered when it last did F or B: what is outside of blocks, and the blocks after B."""
    ends, blocks = step.units.ends, step.gathered_of(step.part.layers)
    return {"": 0, "F": ends + blocks * step.units.kept, "B": ends + blocks, "A": ends + blocks}


def ahead(step: Step, instant: str) -> Iterator[Moment]:
    """Where a stage has just been gathered ahead of its turn: all of it is unpacked, one unit after another."""
    if step.after == "A":
        each = max(step.units.ends, *(step.unit(i).gathered for i in step.told_apart))
        yield Moment(instant, at.no_gradients(step) | {at.GATHERED: gathered(step)["A"], at.GATHERING: each})


def forward(step: Step) -> Iterator[Moment]:
    yield from ahead(step, "forward")
    yield from at.forward(step)


def backward(step: Step) -> Iterator[Moment]:
    """What a backward has besides that of one stage alone: gradients are cast while all weights are still gathered."""
    yield from ahead(step, "loss" if step.part.last else "last block")
    yield from at.backward(step)
    width, low = step.piled_width, step.precision.gradients
    if step.finds or width == low:
        return
    for i in step.told_apart:
        gathered = step.units.ends + step.unit(i).gathered + step.gathered_beside(i, backward=True)
        block = piled.casting(step.trained_of(i), width, low)
        yield Moment(at.instant(step, i), {
            at.KEPT: step.kept_below[i] + step.beside, at.STREAM: step.stream, at.GATHERED: gathered,
            at.UNREDUCED: piled.during(step, step.layers - i) + block,
            at.OUTPUT: 0 if step.part.last else 2 * step.stream})
    if not step.part.first:
        yield Moment(at.instant(step, 0), {
            at.KEPT: step.beside, at.STREAM: step.stream,
            at.GATHERED: step.units.ends + step.gathered_of(step.part.layers),
            at.UNREDUCED: piled.converting(step), at.OUTPUT: 0 if step.part.last else 2 * step.stream})


def shared_out(step: Step) -> Iterator[Moment]:
    """After the last micro-batch: gradients whole, weights gathered, and the largest reduce-scatter's input."""
    name = "embedding" if step.part.first and step.trained.embedding else at.instant(step, 0)
    width, layers, units = step.piled_width, step.part.layers, step.units
    weights, waiting = step.gathered_of(layers), width * step.trained.in_blocks(layers)
    ends = step.elements("gradients", step.trained.ends)
    done = at.all_gradients(step) - step.bytes.gradients * (step.block_elements("gradients", layers) + ends)
    whole = width * (count(step.trained.ends_gradients) + at.summed_first(step))
    yield Moment(name, {at.GATHERED: units.ends + weights, at.UNREDUCED: waiting + whole, at.GRADIENTS: done})
    yield from _shared_out(step, name, step.trained.ends, units.ends_reduced, weights, waiting, done)
    for i in step.told_apart:
        above = layers[i + 1:]
        done = at.all_gradients(step) - step.bytes.gradients * step.block_elements("gradients", layers[i:])
        yield from _shared_out(step, name, step.trained_of(i), step.unit(i).reduced, step.gathered_of(above),
                               width * step.trained.in_blocks(above), done)


def _shared_out(step: Step, name: str, unit: tuple[Tensor, ...], reduced: int, weights: int, waiting: int,
                done: int) -> Iterator[Moment]:
    """One unit's: its gradients beside the reduce-scatter's input; then only the last of them, and the result."""
    parts = {at.GATHERED: weights, at.REDUCING: reduced, at.GRADIENTS: done}
    yield Moment(name, parts | {at.UNREDUCED: waiting + step.piled_width * count(unit)})
    yield Moment(name, parts | {at.UNREDUCED: waiting + step.piled_width * count(unit[-1:])
                                + reduced // step.layout.replicas})
