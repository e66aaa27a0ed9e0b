"""Every way to lay a training run out over a cluster: which jobs a search compares."""

from collections.abc import Iterator
from itertools import product
from math import gcd

from gpucourse.catalog.cluster import Cluster
from gpucourse.catalog.halves import refusal
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive_int
from gpucourse.predict.schedules import stages_a_rank

# (shard, reshard) from the most memory to the least.
SHARDINGS = (("none", "always"), ("zero1", "always"), ("zero2", "always"), ("zero3", "never"), ("zero3", "always"))
# (schedule, chunks) from the plain to the involved. The V-shaped ones are left to `predict`.
PIPELINED = (("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zero-bubble", 1))
RECOMPUTES = ("none", "op", "full")


def candidates(shape: Shape, cluster: Cluster, global_batch: int, job: Job) -> Iterator[Job]:
    """Jobs that use every GPU and read `global_batch` sequences a step; what a layout does not decide is `job`'s.

    Tensor parallelism stays within a domain, and divides norms and loss too. Stages have equally many layers.
    """
    positive_int("global-batch", global_batch)
    for tp, pp, cp in _axes(shape, cluster, job.seq):
        dp = cluster.gpus // (tp * pp * cp)
        if global_batch % dp or job.chunked_loss and tp > 1:
            continue
        experts = gcd(shape.experts.count, dp) if shape.experts else 1
        sharded = SHARDINGS if dp * cp > 1 else SHARDINGS[:1]
        micros = divisors(global_batch // dp)
        for ep, micro, (shard, reshard) in product(divisors(experts), micros, sharded):
            accumulate = global_batch // dp // micro
            for schedule, chunks in _pipelines(shape, pp, accumulate):
                layout = Layout(dp, shard, reshard, True, tp, tp > 1, tp > 1, pp, schedule, chunks, cp, ep)
                for recompute in RECOMPUTES:
                    found = job.but(micro_batch=micro, accumulate=accumulate, recompute=recompute, layout=layout)
                    if not refusal(found):
                        yield found


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _axes(shape: Shape, cluster: Cluster, seq: int) -> Iterator[tuple[int, int, int]]:
    """(tp, pp, cp) that the shape, the sequence and the cluster allow."""
    for tp in divisors(gcd(cluster.gpus, shape.kv_heads, shape.ffn, seq)):
        if cluster.leaves(1, tp):
            continue
        for pp in divisors(gcd(cluster.gpus // tp, shape.layers)):
            for cp in divisors(gcd(cluster.gpus // tp // pp, seq)):
                yield tp, pp, cp


def _pipelines(shape: Shape, pp: int, micro_batches: int) -> Iterator[tuple[str, int]]:
    """Schedules that this number of micro-batches allows."""
    if pp == 1:
        yield PIPELINED[0]
        return
    for schedule, chunks in PIPELINED:
        if shape.layers % (pp * chunks):
            continue
        try:
            stages_a_rank(schedule, pp, micro_batches, chunks)
        except BadInput:
            continue
        yield schedule, chunks
