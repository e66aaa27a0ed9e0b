"""What a schedule costs without playing it out: the time a rank waits, and the activations it holds."""

from gpucourse.errors import unknown
from gpucourse.predict.schedules import SCHEDULES
from gpucourse.predict.timeline import EVEN, Costs


def idle_seconds(name: str, ranks: int, costs: Costs = EVEN) -> float:
    """How long each rank waits in all, costs being those of one stage (of a chunk, where a rank holds several).

    GPipe, 1F1B, interleaved: (p−1)·(F+B). Zero-bubble: (p−1)·(F+I−W), and at least (p−1)·max(F, I), which the paper's
    formula leaves out. zbv (p−1)·F and dualpipe (p−1)·(F+2B−3W), both where F = I = W; play others out.
    """
    f, i, w = costs.forward, costs.input_gradient, costs.weight_gradient
    waits = {"gpipe": f + i + w, "1f1b": f + i + w, "interleaved": f + i + w, "zero-bubble": max(f + i - w, f, i),
             "zbv": f, "dualpipe": f + 2 * i - w}
    return (ranks - 1) * _of(waits, name)


def held(name: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> int:
    """The most micro-batches whose activations `rank` holds, each of one stage: 1/(ranks · chunks) of the model."""
    p, m, v = ranks, micro_batches, chunks
    counts = {"gpipe": m, "1f1b": min(m, p - rank), "interleaved": min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1),
              "zero-bubble": v * p, "zbv": 2 * p, "dualpipe": min(2 * p + 1, 2 * m)}
    return _of(counts, name)


def _of(table: dict, name: str):
    if name not in table:
        raise unknown("schedule", name, SCHEDULES)
    return table[name]
