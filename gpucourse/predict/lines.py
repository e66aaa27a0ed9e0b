"""The lines of a memory ledger: each part's formula with the values put in, and the instants at which it is alive."""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil

from gpucourse.catalog.halves import in_halves
from gpucourse.predict import experts, half_moments, halves, latent, piled, ring, staged
from gpucourse.predict import moments as at
from gpucourse.predict.ledger import Line
from gpucourse.predict.moments import Moment
from gpucourse.predict.optimizer import state
from gpucourse.predict.recompute import WHOLE
from gpucourse.predict.sizes import formula
from gpucourse.predict.step import Step
from gpucourse.predict.tape import highest
from gpucourse.predict.tensors import count

CPU_EAGER = "PyTorch eager, derivatives.yaml"
FULLY_SHARD = "torch.distributed.fsdp, fully_shard"


def states(step: Step, instants: Iterable[str]) -> list[Line]:
    """What is there at every instant: weights, the batch, and unless it is offloaded the optimizer's state."""
    b, job, shape = step.bytes, step.job, step.shape
    weights = step.all_elements("weights")

    def constant(name, category, text, amount):
        return Line(name, category, text, dict.fromkeys(instants, amount))

    lines = [constant("weights", "weights", f"{b.weights} × {weights:,}", b.weights * weights)]
    if shape.positions == "rope":
        turned = shape.latent.rope_size if shape.latent else shape.head_size
        each, stages = 8 * shape.context * turned, step.rank.stages
        lines.append(constant("rotary tables", "weights", f"{stages} × " * (stages > 1)
                              + f"2 × 4 × {shape.context} × {turned}", stages * each))
    if not job.offload:
        lines += state(step, instants)
    lines.append(batch(step, constant))
    if step.layout.in_buckets and not step.layout.bucket_view:
        elements = count(step.all_trained.in_order(step.rank.layers))
        lines.append(constant("DDP's buckets", "buckets", f"{b.gradients} × {elements:,}", b.gradients * elements))
    return lines


def batch(step: Step, constant) -> Line:
    """Tokens and targets; in a pipeline those of all micro-batches, on the first rank and on the last."""
    tokens, kinds = step.tokens, step.rank.first + step.rank.last
    if step.layout.pp == 1:
        return constant("batch", "activations", f"tokens and targets, 2 × 8 × {tokens:,}", 16 * tokens)
    times = step.job.accumulate
    return constant("batch", "activations", f"{kinds} × 8 × {times} × {tokens:,}", 8 * kinds * times * tokens)


def changing(step: Step, moments: Mapping[str, Moment]) -> Iterator[Line]:
    """What comes and goes, at the highest moment of each instant."""
    names = {}
    if step.job.recompute in WHOLE:
        names[at.BLOCK_BACKWARD] = "one block, recomputed and backward"
    if step.job.recompute == "full":
        names[at.KEPT] = "inputs of the blocks"
    for part, (category, text, source) in described(step).items():
        amounts = {instant: moment.parts.get(part, 0) for instant, moment in moments.items()}
        yield Line(names.get(part, part), category, text, amounts, source)


def described(step: Step) -> dict[str, tuple[str, str, str]]:
    """Category, formula and source of each part, in the order of the ledger."""
    last, head, units, unit = step.blocks[-1], step.head, step.units, step.unit(step.layers - 1)
    low, table = step.precision.gradients, count(step.own.embedding)
    made = count(step.own.table_gradient)
    recomputed = ""
    if step.job.recompute in WHOLE:
        recomputed = f"[{formula(last.kept)}] in place of [{formula(last.stays)}], and "
    parts = step.job.chunked_loss
    in_parts = f", {ceil(step.tokens / parts):,} tokens at a time" if parts else ""
    unreduced = f"{step.piled_width if step.piles else low} × the elements whose gradients are not yet shared out"
    rests_on = "; ".join(source for source, used in ((ring.SOURCE, step.layout.cp > 1),
                                                     (experts.SOURCE, step.shape.experts),
                                                     (latent.SOURCE, step.shape.latent)) if used)
    one = "each block between its forward and its backward" if units.kept else "one block"
    return {
        at.GRADIENTS: ("gradients", f"{step.bytes.gradients} × {step.all_elements('gradients'):,}"
                       + " once all exist" * (not step.gradients_stay), ""),
        at.KEPT: ("activations", kept(step), "; ".join(filter(None, (CPU_EAGER, rests_on)))),
        at.COPIES: ("activations", f"2 × {at.cached_copies(step, step.layers) // 2:,}, until the loss is known", ""),
        at.BLOCK_FORWARD: ("activations", f"at {last.forward.at}", rests_on),
        at.HEAD_FORWARD: ("activations", f"at {highest((head.forward, head.loss_forward)).at}" + in_parts, ""),
        at.HEAD_KEPT: ("activations", formula(head.kept), CPU_EAGER),
        at.LOSS_BACKWARD: ("temporaries", f"at {highest((head.loss_backward, head.backward)).at}" + in_parts, ""),
        at.STREAM: ("temporaries", formula(step.stream_size), ""),
        at.WAITING: ("temporaries", f"{low} × {table:,}", ""),
        at.BLOCK_BACKWARD: ("temporaries", f"{recomputed}at {last.backward.at}", rests_on),
        at.EMBEDDING: ("temporaries", f"{low} × {made:,}" + " made, and added to the head's" * at.adding(step), ""),
        at.GATHERED: ("gathered", f"{units.ends:,} outside of the blocks, {unit.gathered:,} for {one}", FULLY_SHARD),
        at.GATHERING: ("gathered", f"{unit.gathered:,} for a block on its way", FULLY_SHARD),
        at.UNREDUCED: ("gathered", unreduced, staged.SOURCE if step.layout.staged else
                       piled.SOURCE if step.piles else FULLY_SHARD),
        at.REDUCING: ("gathered", f"{unit.reduced:,} a block, {units.ends_reduced:,} all else", FULLY_SHARD),
        half_moments.OWED: ("activations", owed(step), halves.SOURCE),
        at.OTHERS: ("activations", f"each {step.held:,}"
                    + ", and with half of its backward done what it owes" * in_halves(step.job), ""),
        at.OUTPUT: ("activations", f"2 × [{formula(step.stream_size)}]", ""),
        at.STEP: ("temporaries", temporaries(step), ""),
    }


def kept(step: Step) -> str:
    """`12 × [n·(…)]`, for each kind of block."""
    sizes = [formula(block.stays) for block in step.blocks]
    return " + ".join(f"{sizes.count(size)} × [{size}]" for size in dict.fromkeys(sizes))


def owed(step: Step) -> str:
    """`[n·(…)] a block`, where a backward comes in halves."""
    return f"[{formula(step.block_halves[0].owed)}] a block" if in_halves(step.job) else ""


def temporaries(step: Step) -> str:
    width = step.bytes.moments
    if step.job.offload:
        return ""
    if step.job.optimizer != "adamw" or step.job.fused:
        return f"gradients summed over the ranks, {step.bytes.gradients} × {at.summed_in_step(step):,}"
    if step.job.foreach:
        return f"one list for all tensors, {width} × {at.temporaries(step) // width:,}"
    return f"two for a tensor and one of the tensor before, {width} × {at.largest_pair(step):,}"
