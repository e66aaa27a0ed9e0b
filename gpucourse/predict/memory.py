"""The memory of one training step of one rank, in closed form."""

from collections.abc import Iterator, Mapping

from gpucourse.catalog.divides import must_divide
from gpucourse.catalog.halves import refusal
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput
from gpucourse.evidence import ALL_INSTANTS, MIDDLE
from gpucourse.predict import moments as at
from gpucourse.predict.ledger import Ledger
from gpucourse.predict.lines import changing, states
from gpucourse.predict.moments import Moment, highest
from gpucourse.predict.optimizer import on_host
from gpucourse.predict.parameters import parameters
from gpucourse.predict.pipelined import Stages
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
        step = Step(shape, job)
        return ledger(title, step, highest(moments(step)))
    stages = Stages(shape, job)
    ranks = {rank: stages.of_rank(rank) for rank in {0, 1, job.layout.pp - 1}}  # others hold less than 1
    worst = max(ranks, key=lambda rank: peak(*ranks[rank]))
    return ledger(f"{title} · the rank that holds most: {worst}", *ranks[worst])


def memory_of_rank(shape: Shape, job: Job, rank: int) -> Ledger:
    """The ledger of one rank of job.layout's pipeline, counted from 0."""
    return ledger(f"{shape.name} · {job} · {job.layout} · rank {rank}", *Stages(shape, job).of_rank(rank))


def peak(step: Step, highest: Mapping[str, Moment]) -> int:
    """Bytes: what is always there, and the highest moment."""
    return sum(line.bytes for line in states(step, highest)) + max(moment.total for moment in highest.values())


def ledger(title: str, step: Step, highest: Mapping[str, Moment]) -> Ledger:
    of = {instant: highest[instant] for instant in ALL_INSTANTS if instant in highest}
    if not step.has_middle:
        of.pop(MIDDLE, None)
    lines = [*states(step, of), *changing(step, of)]
    host = on_host(step, of) if step.job.offload else []
    return Ledger(title, tuple(line for line in lines if line.bytes), step.where(), step.layout.ranks, tuple(host))


def moments(step: Step) -> Iterator[Moment]:
    yield from at.backward(step)
    yield from at.forward(step)
    if step.piles:
        earlier = Step(step.shape, step.job, reduces=False)
        yield from at.backward(earlier)
        yield from at.forward(earlier)
    yield from at.update(step)


def check(shape: Shape, job: Job) -> None:
    if job.seq > shape.context:
        raise BadInput(f"seq {job.seq} is longer than the context of {shape.name}: {shape.context}")
    must_divide(shape, job)
    if job.layout.pp > 1:
        stages_a_rank(job.layout.schedule, job.layout.pp, job.accumulate, job.layout.chunks)
    if refusal(job):
        raise BadInput(refusal(job))
    lacking = [name for name in LACKING if getattr(shape, name)]
    if lacking:
        raise BadInput(f"{shape.name} has {', '.join(lacking)}: its memory is not predicted yet; use a GPT-2 or Llama "
                       "style shape")
    if job.lora and (shape.experts or shape.latent):
        raise BadInput("the memory of lora with experts is not predicted yet; leave it out")
