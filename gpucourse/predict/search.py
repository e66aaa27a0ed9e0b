"""The layouts of a cluster that hold a training run, best first, each with the reason that it beats the next."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, log

from gpucourse.catalog.cluster import Cluster
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import PIPELINES, RESHARDS, SHARDS
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive_int
from gpucourse.predict.candidates import RECOMPUTES, candidates
from gpucourse.predict.plan import Plan, achievable, plan, step
from gpucourse.predict.steptime import StepTime

TIE = 1.03  # speeds this close are a tie: the prediction is not finer


@dataclass(frozen=True)
class Found:
    """plans: the best, all of the same verdict: `yes`, or where no layout surely fits `uncertain`, or the nearest `no`.

    bolder: the best plan that may not fit, where it is faster than those that do. layouts: how many were ranked.
    verdicts: of those whose memory was looked at, how many fit, do not, or may; the fastest are looked at first, until
    there are plans enough. skipped: {reason: how many} of those that cannot be predicted.
    """

    plans: tuple[Plan, ...]
    bolder: Plan | None
    layouts: int
    verdicts: Mapping[str, int]
    skipped: Mapping[str, int]


def search(shape: Shape, cluster: Cluster, global_batch: int, job: Job, top: int = 10) -> Found:
    """The best `top` layouts of all the cluster's GPUs for `global_batch` sequences of job.seq tokens a step.

    job: what a layout does not decide, such as precision and optimizer. Raises BadInput where nothing can be predicted.
    """
    positive_int("top", top)
    kept: dict[str, list[Plan]] = {"yes": [], "uncertain": [], "no": []}
    verdicts, skipped = Counter(dict.fromkeys(kept, 0)), Counter()
    layouts = ranked(shape, cluster, candidates(shape, cluster, global_batch, job))
    for candidate in layouts:
        try:
            found = plan(shape, candidate, cluster)
        except BadInput as error:
            skipped[str(error)] += 1
            continue
        verdicts[found.fits] += 1
        if found.fits == "no":
            kept["no"] = [min([found, *kept["no"]], key=lambda one: one.ledger.peak)]
        elif len(kept[found.fits]) < top:
            kept[found.fits].append(found)
        if len(kept["yes"]) == top:
            break
    best = kept["yes"] or kept["uncertain"] or kept["no"]
    if not best:
        raise BadInput(next(iter(skipped), f"no layout of {cluster.gpus} GPUs divides {shape.name}, seq {job.seq} and "
                                           f"global batch {global_batch}; change the batch or the number of GPUs"))
    maybe = kept["uncertain"][0] if kept["yes"] and kept["uncertain"] else None
    bolder = maybe if maybe and speed_class(speed(maybe)) > speed_class(speed(best[0])) else None
    return Found(tuple(best), bolder, len(layouts), verdicts, skipped)


def ranked(shape: Shape, cluster: Cluster, jobs: Iterable[Job]) -> list[Job]:
    """Fastest first, in classes of three per cent; within a class the simplest. Memory plays no part."""
    def rank(job: Job) -> tuple[int, ...]:
        *_, time = step(shape, job, cluster, achievable(shape, job, cluster.gpu))
        return -speed_class(rate(job, time)), *simplicity(job).values()

    return sorted(jobs, key=rank)


def rate(job: Job, time: StepTime) -> float:
    """Tokens a second and GPU at the middle of the step's interval: what plans are ranked by."""
    return time.tokens * job.layout.dp / job.layout.ranks / _middle(time.seconds)


def speed(found: Plan) -> float:
    return rate(found.job, found.time)


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
