"""The memory of one training step of one rank, in closed form."""

from gpucourse.catalog.divides import must_divide
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput
from gpucourse.evidence import ALL_INSTANTS, MIDDLE
from gpucourse.predict.ledger import Ledger
from gpucourse.predict.lines import changing, states
from gpucourse.predict.moments import Moment, moments
from gpucourse.predict.parameters import parameters
from gpucourse.predict.step import Step

LACKING = ("experts", "latent", "parallel", "qk_norm", "qkv_bias", "other")  # parts that our networks do not have


def memory(shape: Shape, job: Job) -> Ledger:
    """A ledger of one optimizer step, in the steady state: the optimizer's state exists, gradients start as None.

    Bytes are those of eager PyTorch on our networks (gpucourse.models), on the rank that holds most. Raises BadInput
    for a shape that they lack.
    """
    check(shape, job)
    step = Step(shape, job)
    highest = highest_moments(step)
    lines = [*states(step, highest), *changing(step, highest)]
    title = f"{shape.name} {parameters(shape).total / 1e6:,.0f}M · {job} · {job.layout}"
    return Ledger(title, tuple(line for line in lines if line.bytes), step.where(), job.layout.ranks)


def check(shape: Shape, job: Job) -> None:
    if job.seq > shape.context:
        raise BadInput(f"seq {job.seq} is longer than the context of {shape.name}: {shape.context}")
    must_divide(shape, job)
    lacking = [name for name in LACKING if getattr(shape, name)]
    if lacking or shape.heads * shape.head_size != shape.hidden:
        raise BadInput(f"{shape.name} has {', '.join(lacking) or 'heads × head size other than hidden'}: "
                       "its memory is not predicted yet; use a GPT-2 or Llama style shape")
    unlike = job.layout.but(pp=1, chunks=1, schedule="1f1b", cp=1, ep=1)
    partly = job.recompute in ("attention", "op")
    awaited = {f"{job.layout}": job.layout != unlike, f"recompute {job.recompute}": partly,
               "adamw-8bit": job.optimizer == "adamw-8bit", "chunked-loss": job.chunked_loss, "offload": job.offload,
               "lora": job.lora}
    for name, used in awaited.items():
        if used:
            raise BadInput(f"the memory of {name} is not predicted yet; leave it out")


def highest_moments(step: Step) -> dict[str, Moment]:
    """Of each instant the moment at which most is alive."""
    highest: dict[str, Moment] = {}
    for moment in moments(step):
        if moment.instant not in highest or moment.total > highest[moment.instant].total:
            highest[moment.instant] = moment
    if not step.has_middle:
        highest.pop(MIDDLE, None)
    return {instant: highest[instant] for instant in ALL_INSTANTS if instant in highest}
