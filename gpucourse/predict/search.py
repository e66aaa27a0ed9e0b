"""The layouts of a cluster that hold a training run, best first, each with the reason that it beats the next."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log

from gpucourse.catalog.cluster import Cluster
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import PIPELINES, RESHARDS, SHARDS
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive_int
from gpucourse.predict.candidates import RECOMPUTES, candidates
from gpucourse.predict.plan import Plan, plan

TIE = 1.03  # speeds this close are a tie: the prediction is not finer


@dataclass(frozen=True)
class Choice:
    """What a search keeps of each plan: enough to rank it. peak: bytes allocated."""

    job: Job
    speed: float
    peak: int
    fits: str

    @property
    def rank(self) -> tuple:
        """Fastest first, in classes of three per cent; within a class the simplest."""
        return -speed_class(self.speed), *simplicity(self.job).values()


@dataclass(frozen=True)
class Found:
    """plans: the best, all of the same verdict: `yes`, or where no layout surely fits `uncertain`, or the nearest `no`.

    verdicts: how many layouts were predicted to fit, not to fit, or neither. bolder: the best plan that may not fit,
    where it is faster than those that do. skipped: {reason: how many} of those that cannot be predicted.
    """

    plans: tuple[Plan, ...]
    verdicts: Mapping[str, int]
    bolder: Plan | None
    skipped: Mapping[str, int]


def search(shape: Shape, cluster: Cluster, global_batch: int, job: Job, top: int = 10) -> Found:
    """The best `top` layouts of all the cluster's GPUs for `global_batch` sequences of job.seq tokens a step.

    job: what a layout does not decide, such as precision and optimizer. Raises BadInput where nothing can be predicted.
    """
    positive_int("top", top)
    choices: dict[str, list[Choice]] = {"yes": [], "uncertain": [], "no": []}
    skipped: Counter[str] = Counter()
    for candidate in candidates(shape, cluster, global_batch, job):
        try:
            found = plan(shape, candidate, cluster)
        except BadInput as error:
            skipped[str(error)] += 1
            continue
        choices[found.fits].append(Choice(candidate, speed(found), found.ledger.peak, found.fits))
    if not any(choices.values()):
        raise BadInput(next(iter(skipped), f"no layout of {cluster.gpus} GPUs divides {shape.name}, seq {job.seq} and "
                                           f"global batch {global_batch}; change the batch or the number of GPUs"))
    sure, maybe = (sorted(choices[verdict], key=lambda choice: choice.rank) for verdict in ("yes", "uncertain"))
    best = sure or maybe or [min(choices["no"], key=lambda choice: choice.peak)]
    bolder = maybe[:1] if sure and maybe and speed_class(maybe[0].speed) > speed_class(sure[0].speed) else []
    plans, bold = (tuple(plan(shape, choice.job, cluster) for choice in some) for some in (best[:top], bolder))
    return Found(plans, {verdict: len(some) for verdict, some in choices.items()}, next(iter(bold), None), skipped)


def speed(found: Plan) -> float:
    """Tokens a second and GPU at the middle of the step's interval: what plans are ranked by."""
    return found.tokens / found.job.layout.ranks / (sum(found.time.seconds) / 2)


def simplicity(job: Job) -> dict[str, int]:
    """What counts as simpler, the weightiest first; smaller is simpler."""
    at = job.layout
    return {
        "axes": sum(n > 1 for n in (at.pp, at.cp, at.tp, at.ep)), "pp": at.pp, "cp": at.cp, "tp": at.tp, "ep": at.ep,
        "shard": SHARDS.index(at.shard), "reshard": RESHARDS.index(at.reshard),
        "schedule": PIPELINES.index(at.schedule), "chunks": at.chunks,
        "recompute": RECOMPUTES.index(job.recompute), "accumulate": job.accumulate,
    }


def why(better: Plan, other: Plan) -> str:
    """What makes one plan beat another: the part of the step that it saves most on, or that it is simpler."""
    if speed_class(speed(better)) == speed_class(speed(other)):
        mine, its = simplicity(better.job), simplicity(other.job)
        first = next(name for name in mine if mine[name] != its[name])
        return f"as fast within {TIE - 1:.0%}, and simpler: {dict(differences(better.job, other.job))[first]}"
    saved = {name: _middle(getattr(other.time, part)) - _middle(getattr(better.time, part))
             for part, name in (("compute", "compute"), ("bubble", "bubble"), ("waiting", "waiting for traffic"))}
    most = max(saved, key=lambda name: saved[name])
    share = saved[most] / _middle(other.time.seconds)
    changed = ", ".join(text for name, text in differences(better.job, other.job) if name != "axes")
    return f"{speed(better) / speed(other) - 1:.1%} faster: {most} takes {share:.1%} of the step less with {changed}"


def differences(job: Job, other: Job) -> list[tuple[str, str]]:
    """(choice, `tp 2, not 4`) for each choice in which two jobs differ."""
    found = {"axes": (simplicity(job)["axes"], simplicity(other)["axes"])}
    found |= {name: (getattr(job.layout, name), getattr(other.layout, name))
              for name in ("pp", "cp", "tp", "dp", "ep", "shard", "reshard", "schedule", "chunks")}
    found |= {name: (getattr(job, name), getattr(other, name)) for name in ("recompute", "micro_batch", "accumulate")}
    return [(name, f"{name.replace('_', '-')} {mine}, not {its}") for name, (mine, its) in found.items() if mine != its]


def speed_class(rate: float) -> int:
    return floor(log(rate) / log(TIE))


def _middle(span: tuple[float, float]) -> float:
    return sum(span) / 2
