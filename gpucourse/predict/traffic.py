"""What one GPU sends in a training step, by collective and axis, and how long that takes on a link.

b micro-batch, s sequence, T = b·s tokens, h hidden, L layers, P elements, g bytes of a gradient. All sizes in bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucourse.catalog.links import Link
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive_int, unknown
from gpucourse.predict import link as links
from gpucourse.predict.kv_cache import divided

SHARDS = ("none", "zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Transfer:
    """A collective that is called `calls` times a step over a buffer of `size` bytes.

    behind: the computation that can hide it, or "" where the next step of the computation waits for it.
    """

    axis: str
    collective: str
    ranks: int
    size: float
    calls: int
    behind: str = ""

    @property
    def sent(self) -> float:
        """Bytes that one GPU sends in a step."""
        return self.calls * self.size * links.bus_factor(self.collective, self.ranks)

    def seconds(self, link: Link) -> float:
        """α–β time of all calls, one after another."""
        return self.calls * links.seconds(self.collective, self.size, self.ranks, link)


def sent(transfers: Iterable[Transfer]) -> float:
    """Bytes that one GPU sends in a step, all axes together."""
    return sum(transfer.sent for transfer in transfers)


def behind(carried: Iterable[tuple[Transfer, Link]]) -> dict[str, float]:
    """Seconds of traffic, each transfer over its link, by the computation that can hide it."""
    waiting: dict[str, float] = {}
    for transfer, link in carried:
        waiting[transfer.behind] = waiting.get(transfer.behind, 0.0) + transfer.seconds(link)
    return waiting


def exposed(waiting: Mapping[str, float], compute: Mapping[str, float]) -> float:
    """Seconds that are left when each computation, {name: seconds}, has hidden what it can of {name: seconds}."""
    return sum(max(0.0, time - (compute.get(name, 0.0) if name else 0.0)) for name, time in waiting.items())


def data_parallel(elements: int, ranks: int, shard: str = "none", gradient: int = 4, weight: int = 2, passes: int = 1,
                  units: int = 1, gathers: int = 2) -> list[Transfer]:
    """Gradients and weights of `elements` parameters between data-parallel ranks.

    DDP 2·(N−1)/N·g·P. ZeRO-1 (g+w)·(N−1)/N·P. ZeRO-2 the same, gradients in each of `passes` forward passes. ZeRO-3
    and FSDP (2w+g)·(N−1)/N·P a pass; gathers: 1 where weights stay gathered from forward to backward
    (arXiv 1910.02054, section 7; arXiv 2304.11277). units: buckets, or blocks that are sharded together.
    """
    if shard not in SHARDS:
        raise unknown("shard", shard, SHARDS)
    positive_int("data-parallel ranks", ranks), positive_int("elements", elements), positive_int("units", units)
    g, w = gradient * elements / units, weight * elements / units
    times = units * positive_int("passes", passes)
    if shard == "none":
        return [Transfer("data", "all-reduce", ranks, g, units, "backward")]
    if shard == "zero1":
        return [Transfer("data", "reduce-scatter", ranks, g, units, "backward"),
                Transfer("data", "all-gather", ranks, w, units)]
    reduced = Transfer("data", "reduce-scatter", ranks, g, times, "backward")
    if shard == "zero2":
        return [reduced, Transfer("data", "all-gather", ranks, w, units)]
    gathered = [Transfer("data", "all-gather", ranks, w, times, where) for where in ("forward", "backward")[:gathers]]
    return [*gathered, reduced]


def tensor_parallel(shape: Shape, tokens: int, ranks: int, sequence_parallel: bool = False, layers: int | None = None,
                    passes: int = 1, element: int = 2) -> list[Transfer]:
    """4 all-reduces of T·h a layer, two forward and two backward (Megatron-LM, arXiv 1909.08053, section 3).

    With sequence parallelism as many all-gathers and reduce-scatters: the same bytes (arXiv 2205.05198, section 4.2).
    """
    divided(shape, ranks)
    size = element * positive_int("tokens", tokens) * shape.hidden
    calls = 4 * (shape.layers if layers is None else layers) * positive_int("passes", passes)
    kinds = ("all-gather", "reduce-scatter") if sequence_parallel else ("all-reduce",)
    return [Transfer("tensor", kind, ranks, size, calls) for kind in kinds]


def pipeline(shape: Shape, tokens: int, ranks: int, micro_batches: int, chunks: int = 1,
             element: int = 2) -> list[Transfer]:
    """T·h to the next stage forward and to the one before backward, of a rank that has both."""
    if positive_int("pipeline ranks", ranks) * positive_int("chunks", chunks) > shape.layers:
        raise BadInput(f"{ranks} pipeline ranks × {chunks} chunks are more than {shape.name}'s {shape.layers} layers")
    if ranks == 1:
        return []
    size = element * positive_int("tokens", tokens) * shape.hidden
    return [Transfer("pipeline", "send", ranks, size, 2 * chunks * positive_int("micro-batches", micro_batches), "")]


def ring_attention(shape: Shape, micro_batch: int, seq: int, ranks: int, passes: int = 1,
                   element: int = 2) -> list[Transfer]:
    """K and V of a rank's part of the sequence, c−1 times around the ring; twice that backward, with their gradients.

    Forward 2·element·b·s·kv·(c−1)/c a layer (ring attention, arXiv 2310.01889).
    """
    block = 2 * element * positive_int("micro-batch", micro_batch) * _part(seq, ranks) * shape.kv_hidden
    calls = (ranks - 1) * shape.layers * positive_int("passes", passes)
    return [Transfer("context", "send", ranks, block, times * calls, behind)
            for times, behind in ((1, "forward"), (2, "backward"))]


def ulysses(shape: Shape, micro_batch: int, seq: int, ranks: int, passes: int = 1, element: int = 2) -> list[Transfer]:
    """All-to-all of Q, K, V and the output, from a part of the sequence to a part of the heads and back.

    Forward element·(2h + 2·kv)·b·(s/c)·(c−1)/c a layer, and the same backward (DeepSpeed-Ulysses, arXiv 2309.14509).
    """
    divided(shape, ranks, "context parallel")
    width = 2 * shape.heads * shape.head_size + 2 * shape.kv_hidden
    size = element * width * positive_int("micro-batch", micro_batch) * _part(seq, ranks)
    return [Transfer("context", "all-to-all", ranks, size, 2 * shape.layers * positive_int("passes", passes))]


def expert_parallel(shape: Shape, tokens: int, ranks: int, passes: int = 1, element: int = 2) -> list[Transfer]:
    """Each token to its k experts and back, forward and backward: 4 all-to-alls of k·T·h a layer with experts."""
    if shape.experts is None:
        raise BadInput(f"{shape.name} has no experts to spread over {ranks} ranks")
    if shape.experts.count % positive_int("expert-parallel ranks", ranks):
        raise BadInput(f"{shape.experts.count} experts do not divide among {ranks} ranks")
    size = element * shape.experts.per_token * positive_int("tokens", tokens) * shape.hidden
    calls = 4 * (shape.layers - shape.experts.dense_layers) * positive_int("passes", passes)
    return [Transfer("expert", "all-to-all", ranks, size, calls)]


def _part(seq: int, ranks: int) -> int:
    """A rank's part of the sequence, in tokens."""
    if positive_int("seq", seq) % positive_int("context-parallel ranks", ranks):
        raise BadInput(f"seq {seq} does not divide among {ranks} context-parallel ranks")
    return seq // ranks
