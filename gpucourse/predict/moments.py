"""The moments of a training step at which memory can be highest: which parts are alive then, and how large they are.

States, which are always there, are left out. With sharded weights (fully_shard)
each moment also has what is gathered, and what waits to be reduced.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from gpucourse.evidence import MIDDLE
from gpucourse.predict import piled
from gpucourse.predict.recompute import WHOLE
from gpucourse.predict.step import Step, Unit
from gpucourse.predict.tensors import Tensor, count, share

GRADIENTS = "gradients"
KEPT = "saved by the blocks"
COPIES = "autocast's copies of the weights"
BLOCK_FORWARD = "last block, forward"
HEAD_FORWARD = "head and loss, forward"
HEAD_KEPT = "saved by the head"
LOSS_BACKWARD = "loss, backward"
STREAM = "gradient of the stream"
WAITING = "head's gradient, waiting for the embedding's"
BLOCK_BACKWARD = "one block, backward"
EMBEDDING = "embedding's gradient"
GATHERED = "gathered weights"
GATHERING = "all-gather buffers"
UNREDUCED = "gradients before reduction"
REDUCING = "reduce-scatter buffer"
STEP = "temporaries of step()"
OTHERS = "other micro-batches in flight"
OUTPUT = "stage's output, and its gradient"


class Moment(NamedTuple):
    """parts: {name: bytes} at a moment of an instant."""

    instant: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def with_more(self, more: Mapping[str, int]) -> "Moment":
        return Moment(self.instant, self.parts | {name: self.parts.get(name, 0) + of for name, of in more.items()})


def highest(moments: Iterable[Moment]) -> dict[str, Moment]:
    """Of each instant the moment at which most is alive; of equal ones the first."""
    found: dict[str, Moment] = {}
    most: dict[str, int] = {}
    for moment in moments:
        total = sum(moment.parts.values())
        if total > most.get(moment.instant, -1):
            found[moment.instant], most[moment.instant] = moment, total
    return found


def forward(step: Step) -> Iterator[Moment]:
    """One micro-batch forward through the part of the model that `step` has."""
    yield from blocks_forward(step)
    if step.part.last:
        yield from loss_forward(step)


def backward(step: Step) -> Iterator[Moment]:
    """The same micro-batch backward."""
    if step.part.last:
        yield from loss_backward(step)
    for i in reversed(step.told_apart):
        yield from block_backward(step, i)
    if step.part.first and step.trained.embedding:
        yield from embedding_backward(step)


def update(step: Step) -> Iterator[Moment]:
    yield Moment("step", {GRADIENTS: all_gradients(step), STEP: temporaries(step)})


def blocks_forward(step: Step) -> Iterator[Moment]:
    """Each block's highest moment; before it the one at which its weights have just been gathered."""
    units = step.units
    before = {KEPT: step.stream - step.received + step.beside, GATHERED: units.ends, **no_gradients(step)}
    ends = units.ends * (not step.after)  # in a pipeline they are gathered once
    yield Moment("forward", before | {GATHERING: ends})
    for i in step.told_apart_forward:
        held, gathered = units.ends + step.gathered_beside(i), step.unit(i).gathered
        stream = step.stream - step.received * (i == 0)
        before |= {KEPT: step.kept_below[i] + stream + step.beside, COPIES: cached_copies(step, i)}
        earlier = step.unit(i - 1).gathered if i else ends  # it is dropped once the next is unpacked
        before |= {GATHERED: held + gathered}
        new = gathered * (not step.gathered)
        yield Moment("forward", before | {GATHERING: (earlier + gathered) * (not step.gathered)})
        yield Moment("forward", before | {GATHERING: new, BLOCK_FORWARD: step.blocks[i].forward.bytes})


def at_loss(step: Step) -> dict[str, int]:
    units = step.units
    return {KEPT: step.kept_below[-1] + step.beside, **no_gradients(step),
            GATHERED: units.ends + step.gathered_below(step.layers)}


def loss_backward(step: Step) -> Iterator[Moment]:
    """Down to the gradient of the last block's output."""
    head, units, common = step.head, step.units, at_loss(step)
    saved = {HEAD_KEPT: step.at(head.kept)}
    if step.gathered and not units.kept:
        common[GATHERED] += step.gathered_of(step.part.layers)
    unit = step.unit(step.layers - 1) if not (units.kept or step.gathered) else Unit()
    next_gathered = {GATHERING: unit.gathered}
    yield Moment("loss", common | {HEAD_KEPT: step.at(head.returned), GATHERING: unit.gathered + unit.pack})
    yield Moment("loss", common | saved | {LOSS_BACKWARD: head.loss_backward.bytes})
    yield Moment("loss", common | saved | {LOSS_BACKWARD: head.backward.bytes} | next_gathered)


def loss_forward(step: Step) -> Iterator[Moment]:
    """From the final norm to the loss."""
    head, common = step.head, at_loss(step)
    copies, gathered = cached_copies(step, step.layers), step.unit(step.layers - 1).gathered * (not step.gathered)
    yield Moment("loss", common | {HEAD_FORWARD: copies + step.stream * head.keeps_stream + head.loss_forward.bytes})
    yield Moment("loss", common | {HEAD_FORWARD: copies + step.stream + head.forward.bytes, GATHERING: gathered})


def block_backward(step: Step, i: int) -> Iterator[Moment]:
    """Block i: its weights gathered, its highest moment, its gradients about to be reduced."""
    last, units, unit = step.layers - 1, step.units, step.unit(i)
    high = step.blocks[i].backward.bytes
    of_stage = {} if step.part.last else {OUTPUT: 2 * step.stream, STREAM: step.stream * (i < last)}
    if i == 0:
        high = max(high, positions_gradient(step) - step.kept_below[1])
    # The next block's weights are on their way while this one works, and the last one's gradients on theirs.
    stay = units.kept or step.gathered
    coming = step.unit(i - 1).gathered if i and not stay else 0
    going = step.unit(i + 1).reduced if i < last and step.reduces else 0
    held = units.ends + step.gathered_beside(i, backward=True)
    common = {KEPT: step.kept_below[i + 1] + step.beside, STREAM: step.stream, WAITING: waiting(step),
              GATHERED: held + unit.gathered, **gradients(step, last - i)} | of_stage
    yield Moment(instant(step, i), common | {BLOCK_BACKWARD: high, GATHERING: coming, REDUCING: going})
    if step.sharded and not stay:
        pack = step.unit(i - 1).pack if i else 0
        yield Moment(instant(step, i), common | {GATHERING: unit.gathered + pack, REDUCING: going})
    if step.sharded and step.reduces:
        waits = common[UNREDUCED] + (0 if step.piles else reduction(step, step.trained_of(i), unit.reduced))
        yield Moment(instant(step, i), common | {KEPT: step.kept_below[i] + step.beside, GATHERED: held,
                                                 GATHERING: coming, UNREDUCED: waits, REDUCING: unit.reduced})


def instant(step: Step, i: int) -> str:
    """Of block i's backward."""
    return "last block" if i == step.layers - 1 else "first block" if i == 0 else MIDDLE


def embedding_backward(step: Step) -> Iterator[Moment]:
    """The token table's gradient; with sharded weights then the reduction of all gradients outside of the blocks."""
    units, own = step.units, step.own
    made, parts = (step.precision.gradients * count(part) for part in (own.table_gradient, own.embedding))
    blocks = step.gathered_of(step.part.layers) * step.layout.staged
    common = gradients(step, step.layers) | {WAITING: waiting(step), GATHERED: units.ends + blocks,
                                             REDUCING: step.unit(0).reduced * step.reduces,
                                             OUTPUT: 0 if step.part.last else 2 * step.stream}
    positions = count(own.positions_gradient)
    if step.sharded:
        common[UNREDUCED] += step.precision.gradients * positions * (not step.adds)
    elif not step.gradients_stay:
        common[GRADIENTS] += step.bytes.gradients * positions
    whole = step.whole_stream  # under sequence parallelism its gradient is gathered first
    if whole > step.stream:
        yield Moment("embedding", common | {STREAM: step.stream + 2 * whole})
    if adding(step):
        yield Moment("embedding", common | {EMBEDDING: made + parts * (2 if step.axes.tp > 1 else 1)})
    else:
        yield Moment("embedding", common | {STREAM: whole, EMBEDDING: made})
    if step.sharded:
        summing = step.precision.gradients * (count(own.ends_gradients) + summed_first(step))
        summing = piled.at_the_end(step) if step.piles else summing
        yield Moment("embedding", common | {WAITING: 0, UNREDUCED: summing})
    if not step.reduces and not step.finds:
        gathered = common[GATHERED] * step.layout.staged
        yield Moment("embedding", common | {WAITING: 0, GATHERED: gathered, UNREDUCED: piled.converting(step)})
    if step.sharded and step.reduces:
        waits = piled.at_the_end(step) if step.piles else reduction(step, own.ends, units.ends_reduced)
        yield Moment("embedding", common | {WAITING: 0, GATHERED: 0, UNREDUCED: waits, REDUCING: units.ends_reduced})


def reduction(step: Step, unit: tuple[Tensor, ...], reduced: int) -> int:
    """Gradients beside the reduce-scatter's input: a unit's own, or its last and the rank's share of the sum."""
    width = step.precision.gradients
    return max(width * count(unit), width * count(unit[-1:]) + reduced // step.layout.replicas)


def summed_first(step: Step) -> int:
    """Elements of a table's gradient, summed over the tensor-parallel ranks and divided, beside the whole one."""
    if step.axes.tp == 1:
        return 0
    return count(step.all.positions if step.all.is_tied else step.all.embedding)


def no_gradients(step: Step) -> dict[str, int]:
    """Gradients during forward: none, unless they stay from one micro-batch to the next."""
    name, bytes_found = found(step)
    return {GRADIENTS: 0, name: bytes_found}


def found(step: Step) -> tuple[str, int]:
    """The gradients that a micro-batch finds, of all that the rank has: which, and their bytes."""
    if step.piles:
        return UNREDUCED, piled.before(step)
    return GRADIENTS, all_gradients(step) if step.gradients_stay else 0


def gradients(step: Step, blocks: int) -> dict[str, int]:
    """Gradients once the head and the `blocks` blocks under it have theirs."""
    above = step.trained.final_norm + step.trained.head
    unreduced = step.precision.gradients * count(above) if step.sharded else 0
    if step.gradients_stay:
        return {GRADIENTS: all_gradients(step), UNREDUCED: unreduced}
    if step.piles and not step.reduces:
        return {GRADIENTS: 0, UNREDUCED: piled.during(step, blocks)}
    layers = step.part.layers
    existing = step.block_elements("gradients", layers[len(layers) - blocks:])
    if step.piles:
        return {GRADIENTS: step.bytes.gradients * existing, UNREDUCED: piled.during(step, blocks)}
    existing += 0 if step.sharded else step.elements("gradients", above)
    return {GRADIENTS: step.bytes.gradients * existing, UNREDUCED: unreduced}


def all_gradients(step: Step) -> int:
    return step.bytes.gradients * step.all_elements("gradients")


def waiting(step: Step) -> int:
    """A tied table's gradient from the head, which waits for the one from the embedding."""
    return step.precision.gradients * count(step.own.embedding) if step.tied else 0


def adding(step: Step) -> bool:
    """Whether adding the two is the higher moment, after the stream's gradient is gone."""
    return waiting(step) > step.whole_stream


def positions_gradient(step: Step) -> int:
    """After the first block the positions get their gradient: what the block kept is gone, its gradients are there."""
    own = step.trained
    if not own.positions or step.gradients_stay or step.sharded:
        return 0
    summed = step.precision.weights * step.seq * step.shape.hidden
    return step.bytes.gradients * (count(step.tensors_of(0)) + count(own.positions_gradient)) + summed


def cached_copies(step: Step, below: int) -> int:
    """Autocast caches each weight's 16-bit copy until it exits; bytes of the blocks below that are run again, and so
    save none."""
    if not step.precision.autocast:
        return 0
    norms = count(step.trained.norms + step.trained.inner_norms)
    kinds = Counter(step.trained_of(i) for i, (_, word, _) in enumerate(step.described[:below]) if word in WHOLE)
    return 2 * sum(times * (count(tensors) - norms) for tensors, times in kinds.items())


def temporaries(step: Step) -> int:
    """What the optimizer makes and drops inside step()."""
    job, width = step.job, step.bytes.moments
    if job.offload:  # that runs on the host
        return 0
    if job.optimizer != "adamw" or job.fused:
        return step.bytes.gradients * summed_in_step(step)
    if job.foreach:
        apart = step.undivided_elements  # a list holds tensors of one mesh: those that are not divided have their own
        # the square of a gradient takes it twice, and each time it is summed over the ranks
        return width * max(step.all_elements("optimizer") - apart, apart, 2 * summed_in_step(step))
    return width * largest_pair(step)


def summed_in_step(step: Step) -> int:
    """Elements of the gradients that the optimizer itself has tensor-parallel ranks sum and divide."""
    if step.axes.tp == 1 or step.sharded:
        return 0
    own = step.all_trained
    if step.job.lora:  # of a matrix's two adapters, the one that every rank has all of
        return len(step.rank.layers) * len(own.block) // 2 * step.job.lora * step.shape.hidden
    return count(() if own.is_tied else own.embedding) + count(own.positions if step.axes.sequence else ())


def largest_pair(step: Step) -> int:
    """Elements of two temporaries for one tensor, and of the one before, whose last result is still there."""
    ways = step.layout.replicas if step.sharded else 1
    sizes = [share((tensor,), ways) for tensor in step.all_trained.in_order(step.rank.layers)]
    return max(before + 2 * now for before, now in pairwise([0, *sizes]))
