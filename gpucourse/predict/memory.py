"""The memory of one training step of one rank, in closed form."""

from collections.abc import Callable, Iterable, Iterator

from gpucourse.catalog.divides import must_divide
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part, part, stages_of
from gpucourse.errors import BadInput
from gpucourse.evidence import ALL_INSTANTS, MIDDLE
from gpucourse.predict import moments as at
from gpucourse.predict import staged
from gpucourse.predict.ledger import Ledger
from gpucourse.predict.lines import changing, states
from gpucourse.predict.moments import Moment
from gpucourse.predict.optimizer import on_host
from gpucourse.predict.parameters import parameters
from gpucourse.predict.pipeline import situations
from gpucourse.predict.schedules import stages_a_rank
from gpucourse.predict.step import Step

LACKING = ("parallel", "other")  # parts that our networks do not have


def memory(shape: Shape, job: Job) -> Ledger:
    """A ledger of one optimizer step, in the steady state: the optimizer's state exists, gradients start as None.

    Bytes are those of eager PyTorch on our networks (gpucourse.models), on the rank that holds most. Raises BadInput
    for a shape that they lack.
    """
    check(shape, job)
    title = f"{shape.name} {parameters(shape).total / 1e6:,.0f}M · {job} · {job.layout}"
    if job.layout.pp == 1:
        return ledger(title, *played(Step(shape, job), moments))
    ranks = {rank: played(*stage(shape, job, rank)) for rank in {0, 1, job.layout.pp - 1}}  # others hold less than 1
    worst = max(ranks, key=lambda rank: peak(*ranks[rank]))
    return ledger(f"{title} · the rank that holds most: {worst}", *ranks[worst])


def memory_of_rank(shape: Shape, job: Job, rank: int) -> Ledger:
    """The ledger of one rank of job.layout's pipeline, counted from 0."""
    return ledger(f"{shape.name} · {job} · {job.layout} · rank {rank}", *played(*stage(shape, job, rank)))


def played(step: Step, moments: Callable[[Step], Iterable[Moment]]) -> tuple[Step, dict[str, Moment]]:
    return step, highest_moments(step, moments(step))


def peak(step: Step, highest: dict[str, Moment]) -> int:
    """Bytes: what is always there, and the highest moment."""
    return sum(line.bytes for line in states(step, highest)) + max(moment.total for moment in highest.values())


def ledger(title: str, step: Step, highest: dict[str, Moment]) -> Ledger:
    lines = [*states(step, highest), *changing(step, highest)]
    host = on_host(step, highest) if step.job.offload else []
    return Ledger(title, tuple(line for line in lines if line.bytes), step.where(), step.layout.ranks, tuple(host))


def moments(step: Step) -> Iterator[Moment]:
    yield from at.backward(step)
    yield from at.forward(step)
    if step.piles:
        earlier = Step(step.shape, step.job, reduces=False)
        yield from at.backward(earlier)
        yield from at.forward(earlier)
    yield from at.update(step)


def stage(shape: Shape, job: Job, rank: int) -> tuple[Step, Callable[[Step], Iterable[Moment]]]:
    """A pipeline rank: what it keeps, and its moments with the micro-batches in flight beside each."""
    layout = job.layout
    parts = {stage: part(shape.layers, layout.stages, stage) for stage in stages_of(layout, rank)}
    owned = Part(range(sum(len(one.layers) for one in parts.values())), any(one.first for one in parts.values()),
                 any(one.last for one in parts.values()))
    steps = {(stage, began): Step(shape, job, one, owned, began) for stage, one in parts.items()
             for began in (False, True)}

    def in_schedule(step: Step) -> Iterator[Moment]:
        for now in situations(job, rank):
            others = sum(count * steps[of, now.began].held for of, count in now.others)
            play = at.forward if now.kind == "F" else at.backward
            for moment in play(steps[now.stage, now.began]):
                moment.parts[at.OTHERS] = others
                yield moment
        yield from at.update(step)

    def with_sharded_weights(step: Step) -> Iterator[Moment]:
        stages = {stage: steps[stage, True] for stage in parts}
        for now in situations(job, rank):
            others = sum(count * stages[of].held for of, count in now.others)
            here = steps[now.stage, now.began].once(now.after)
            gathered = staged.beside(now, stages)
            for moment in (at.forward if now.kind == "F" else staged.backward)(here):
                moment.parts[at.OTHERS] = others
                moment.parts[at.GATHERED] += gathered
                yield moment
        yield from staged.shared_out(step)
        yield from at.update(step)

    return steps[min(parts), True], with_sharded_weights if layout.staged else in_schedule


def check(shape: Shape, job: Job) -> None:
    if job.seq > shape.context:
        raise BadInput(f"seq {job.seq} is longer than the context of {shape.name}: {shape.context}")
    must_divide(shape, job)
    if job.layout.pp > 1:
        stages_a_rank(job.layout.schedule, job.layout.pp, job.accumulate, job.layout.chunks)
    lacking = [name for name in LACKING if getattr(shape, name)]
    if lacking:
        raise BadInput(f"{shape.name} has {', '.join(lacking)}: its memory is not predicted yet; use a GPT-2 or Llama "
                       "style shape")
    if job.lora and (shape.experts or shape.latent):
        raise BadInput("the memory of lora with experts is not predicted yet; leave it out")


def highest_moments(step: Step, moments: Iterable[Moment]) -> dict[str, Moment]:
    """Of each instant the moment at which most is alive."""
    highest: dict[str, Moment] = {}
    most: dict[str, int] = {}
    for moment in moments:
        total = moment.total
        if total > most.get(moment.instant, -1):
            highest[moment.instant], most[moment.instant] = moment, total
    if not step.has_middle:
        highest.pop(MIDDLE, None)
    return {instant: highest[instant] for instant in ALL_INSTANTS if instant in highest}
