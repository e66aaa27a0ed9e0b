"""What one rank of a layout sends in a step, axis by axis, and over which link of a cluster."""

from dataclasses import replace

from gpucourse.catalog.cluster import Cluster
from gpucourse.catalog.jobs import Job, recompute_of_layers
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.links import Link
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import traffic
from gpucourse.predict.axes import axes
from gpucourse.predict.host_traffic import host_link, offloaded
from gpucourse.predict.lora import adapters
from gpucourse.predict.parameters import parameters
from gpucourse.predict.pipeline import NOT_YET, of_schedule, often
from gpucourse.predict.tensors import count, tensors
from gpucourse.predict.traffic import Transfer


def step_traffic(shape: Shape, job: Job) -> list[Transfer]:
    """Every collective of one optimizer step, of the rank with the most parameters.

    Where a layer runs again in backward, `op` and `op-2` included, so do its collectives: the results that are kept are
    those of products and of attention. Only what comes after the last tensor that backward needs, a layer's last sum
    over the tensor-parallel ranks, does not. Left out: the embedding's one collective a pass, the loss's few numbers,
    the norms' gradients.
    """
    layout = job.layout
    found = [*_trained(_data(shape, job), shape, job), *_tensor(shape, job), *_context(shape, job),
             *_expert(shape, job), *_pipeline(shape, job)]
    between = [transfer for transfer in found if transfer.ranks > 1 and layout.ranks > 1]
    return between + offloaded(job, *trained_elements(shape, job))


def over(cluster: Cluster, layout: Layout, transfers: list[Transfer]) -> list[tuple[Transfer, Link]]:
    """Each transfer with the link that it crosses. Neighbours first: tp, then cp, then dp and ep, pp outermost."""
    strides = {"tensor": 1, "context": layout.tp, "expert": layout.tp * layout.cp,
               "pipeline": layout.tp * layout.replicas}

    def stride(transfer: Transfer) -> int:
        apart = layout.replicas // transfer.ranks  # above 1 for experts, of which only every ep-th rank has the same
        return strides.get(transfer.axis) or layout.tp * apart

    return [(t, host_link(cluster.gpu) if t.axis == "host" else cluster.link(t.collective, stride(t), t.ranks))
            for t in transfers]


def stage_layers(shape: Shape, layout: Layout) -> int:
    """Layers of the fullest pipeline rank."""
    return -(-shape.layers // layout.pp)


def outside_of_blocks(shape: Shape, layout: Layout) -> int:
    """Parameters of the fullest rank that belong to no block, before they are divided."""
    of = parameters(shape)
    ends = (of.embedding + of.positions, of.final_norm + (of.head or of.embedding))
    return of.total - of.blocks if layout.pp == 1 else max(ends)


def stage_elements(shape: Shape, layout: Layout) -> tuple[int, int]:
    """Parameters of the fullest rank before they are sharded: those that all replicas hold, and its experts'."""
    of, layers, outside = parameters(shape), stage_layers(shape, layout), outside_of_blocks(shape, layout)
    experts = 0
    if shape.experts:
        expert = (of.mlp - shape.hidden * shape.experts.count) // (shape.experts.count + shape.experts.shared)
        experts = min(layers, of.layers - of.dense_blocks) * shape.experts.count * expert
    blocks = of.blocks if layout.pp == 1 else layers * of.block
    return (blocks + outside - experts) // layout.tp, experts // (layout.tp * layout.ep)


def trained_elements(shape: Shape, job: Job) -> tuple[int, int]:
    """The same of what is trained: all, or adapters alone."""
    if not job.lora:
        return stage_elements(shape, job.layout)
    each = count(adapters(tensors(shape, axes(job.layout)).block, job.lora))
    return stage_layers(shape, job.layout) * each, 0


def _trained(transfers: list[Transfer], shape: Shape, job: Job) -> list[Transfer]:
    """Of a frozen model with adapters only these have gradients and new values; sharded weights are gathered all."""
    if not job.lora:
        return transfers
    (trained, _), (frozen, _) = trained_elements(shape, job), stage_elements(shape, job.layout)
    shares = {"all-gather": 1 + trained / frozen} if job.layout.shard == "zero3" else {}
    return [replace(t, size=t.size * shares.get(t.collective, trained / frozen)) for t in transfers]


def _data(shape: Shape, job: Job) -> list[Transfer]:
    layout, widths = job.layout, job.bytes
    if layout.staged:
        return _staged(shape, job)
    weight = widths.compute if layout.shard == "zero3" else widths.weights
    units, gathers = stage_layers(shape, layout) + 1, 1 if layout.reshard == "never" else 2
    common, experts = stage_elements(shape, layout)
    parts = [(common, layout.replicas)] + ([(experts, layout.replicas // layout.ep)] if experts else [])
    found = [transfer for elements, ranks in parts
             for transfer in traffic.data_parallel(elements, ranks, layout.shard, widths.gradients, weight,
                                                   job.accumulate, units, gathers)]
    if layout.reduce == "always":
        return found
    return [replace(t, calls=t.calls // job.accumulate) if t.collective == "reduce-scatter" else t for t in found]


def _staged(shape: Shape, job: Job) -> list[Transfer]:
    """Sharded weights in a pipeline: blocks are gathered as often as they have been given back, all else once, or as
    often as its stage's turn comes anew; and gradients are shared out when all backwards are over, so that none is left
    to hide it (predict/staged.py)."""
    layout, widths, layers = job.layout, job.bytes, stage_layers(shape, job.layout)
    (common, experts), ends = stage_elements(shape, layout), outside_of_blocks(shape, layout) // layout.tp
    again = {play: round(layers * times) for play, times in gathers(job).items()}
    plays = often(*of_schedule(job), 0)
    turns = sum(times for (_, stage, after), times in plays.items() if stage == 0 and after in NOT_YET)
    found = [Transfer("data", "all-gather", layout.replicas, widths.compute * ends, turns, "forward"),
             Transfer("data", "reduce-scatter", layout.replicas, widths.gradients * ends, 1)]
    for elements, ranks in ((common - ends, layout.replicas), (experts, layout.replicas // layout.ep)):
        each = elements / layers
        found += [Transfer("data", "all-gather", ranks, widths.compute * each, calls, behind)
                  for behind, calls in again.items() if calls and each]
        found += [Transfer("data", "reduce-scatter", ranks, widths.gradients * each, layers)] if each else []
    return found


def gathers(job: Job) -> dict[str, float]:
    """How often a block of the first pipeline rank is gathered in the forwards of a step, and in its backwards."""
    plays, kept = often(*of_schedule(job), 0), ("F", "B") if job.layout.reshard == "never" else ("B",)
    stages = len({stage for _, stage, _ in plays})
    return {name: sum(times for (kind, _, after), times in plays.items() if kind == play and after not in kept) / stages
            for name, play in (("forward", "F"), ("backward", "B"))}


def _tensor(shape: Shape, job: Job) -> list[Transfer]:
    """Four collectives a layer; and without a vocabulary-parallel loss, the logits gathered for it, or those of each of
    its parts, and in backward once more.

    Of a layer's two sums forward, the second is not repeated: each of its gathers is needed for what follows it.
    """
    layout, width = job.layout, job.bytes.compute
    if layout.tp == 1:
        return []
    tokens, layers = job.tokens // layout.cp, stage_layers(shape, layout)
    layered = traffic.tensor_parallel(shape, tokens, layout.tp, layout.sequence_parallel, layers, job.accumulate, width)
    parts, times = (job.chunked_loss, 2) if job.chunked_loss else (1, 1)
    logits = Transfer("tensor", "all-gather", layout.tp, width * tokens * shape.vocab / parts,
                      job.accumulate * parts * times)
    repeated = {"all-reduce": 1 / 4, "reduce-scatter": 1 / 4, "all-gather": 2 / 4}
    layered = [more for t in layered for more in _again([t], shape, job, repeated[t.collective])]
    return layered + ([] if layout.vocab_parallel_loss else [logits])


def _context(shape: Shape, job: Job) -> list[Transfer]:
    """K and V around the ring, of a stage's layers and a tensor-parallel rank's heads."""
    layout = job.layout
    if layout.cp == 1:
        return []
    forward, backward = traffic.ring_attention(shape, job.micro_batch, job.seq, layout.cp, job.accumulate,
                                               job.bytes.compute)
    share = stage_layers(shape, layout) / shape.layers
    repeated = 1 + (1 if job.recompute == "attention" else recomputed_share(shape, job))
    return [replace(t, size=t.size / layout.tp, calls=round(t.calls * share * times))
            for t, times in ((forward, repeated), (backward, 1))]


def _expert(shape: Shape, job: Job) -> list[Transfer]:
    layout = job.layout
    if layout.ep == 1:
        return []
    tokens = job.tokens // (layout.cp * (layout.tp if layout.sequence_parallel else 1))
    swaps = traffic.expert_parallel(shape, tokens, layout.ep, job.accumulate, job.bytes.compute)
    share = stage_layers(shape, layout) / shape.layers
    return _again([replace(t, calls=round(t.calls * share)) for t in swaps], shape, job, 2 / 4)


def _pipeline(shape: Shape, job: Job) -> list[Transfer]:
    layout = job.layout
    if layout.pp == 1:
        return []
    tokens = job.tokens // (layout.cp * (layout.tp if layout.sequence_parallel else 1))
    return traffic.pipeline(shape, tokens, layout.pp, job.accumulate, layout.chunks, job.bytes.compute)


def _again(transfers: list[Transfer], shape: Shape, job: Job, repeated: float) -> list[Transfer]:
    """With what recomputed layers repeat: this part of a layer's collectives of forward and backward."""
    share = recomputed_share(shape, job)
    return [replace(t, calls=round(t.calls * (1 + share * repeated))) for t in transfers] if share else transfers


def recomputed_share(shape: Shape, job: Job) -> float:
    """The share of the layers whose forward runs again in backward."""
    words = recompute_of_layers(job.recompute, shape.layers)
    return sum(word not in ("none", "attention") for word in words) / shape.layers
