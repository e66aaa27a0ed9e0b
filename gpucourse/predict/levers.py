"""What could be changed in a plan, one choice at a time, and what each change would save and cost."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.units import bytes_text
from gpucourse.errors import BadInput
from gpucourse.predict.candidates import RECOMPUTES, SHARDINGS
from gpucourse.predict.plan import Plan, plan
from gpucourse.predict.search import speed


@dataclass(frozen=True)
class Lever:
    """One change. saved: bytes of the peak, negative where it takes more. speed: the change of tokens/s, a fraction."""

    change: str
    saved: int
    speed: float
    fits: str

    def __str__(self) -> str:
        memory = f"saves {bytes_text(self.saved)}" if self.saved >= 0 else f"takes {bytes_text(-self.saved)} more"
        pace = "keeps the speed"
        if abs(self.speed) >= 0.0005:
            pace = f"costs {-self.speed:.1%} of tokens/s" if self.speed < 0 else f"gains {self.speed:.1%} of tokens/s"
        return f"{self.change} {memory} and {pace}" + ("" if self.fits == "yes" else f" (fits: {self.fits})")


def levers(found: Plan) -> list[Lever]:
    """Every single change that can be predicted, the cheapest in speed first."""
    known = []
    for change, job in moves(found.job):
        try:
            other = plan(found.shape, job, found.cluster)
        except BadInput:
            continue
        known.append(Lever(change, found.ledger.peak - other.ledger.peak, speed(other) / speed(found) - 1, other.fits))
    return sorted(known, key=lambda lever: abs(lever.speed))


def moves(job: Job) -> Iterator[tuple[str, Job]]:
    """Jobs one step away that read the same batch on the same GPUs, each with the name of the step."""
    layout = job.layout
    if job.micro_batch % 2 == 0:
        yield "halving the micro-batch", job.but(micro_batch=job.micro_batch // 2, accumulate=2 * job.accumulate)
    if job.accumulate % 2 == 0:
        yield "doubling the micro-batch", job.but(micro_batch=2 * job.micro_batch, accumulate=job.accumulate // 2)
    for recompute in _beside(RECOMPUTES, job.recompute):
        yield f"recompute {recompute}", job.but(recompute=recompute)
    if layout.replicas > 1:
        for shard, reshard in _beside(SHARDINGS, (layout.shard, layout.reshard)):
            kept = f" with reshard {reshard}" if shard == "zero3" else ""
            yield f"shard {shard}{kept}", job.but(layout=layout.but(shard=shard, reshard=reshard))
    if layout.dp % (2 * layout.ep) == 0 and layout.replicas > 2:
        yield f"tp {2 * layout.tp}", job.but(layout=_over(layout, 2 * layout.tp), accumulate=2 * job.accumulate)
    if layout.tp % 2 == 0 and job.accumulate % 2 == 0:
        yield f"tp {layout.tp // 2}", job.but(layout=_over(layout, layout.tp // 2), accumulate=job.accumulate // 2)


def _over(layout: Layout, tp: int) -> Layout:
    """The same ranks with another share of them tensor-parallel."""
    return layout.but(tp=tp, dp=layout.dp * layout.tp // tp, sequence_parallel=tp > 1, vocab_parallel_loss=tp > 1)


def _beside(choices: tuple, now) -> list:
    """The neighbours of a choice in a list that runs from the plain to the involved."""
    at = choices.index(now) if now in choices else 0
    return [choices[i] for i in (at - 1, at + 1) if 0 <= i < len(choices)]
