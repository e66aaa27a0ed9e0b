"""One rank of a pipeline by itself: its stage's forwards and backwards in the schedule's order, neighbours imagined."""

import torch
from torch import Tensor

from gpucourse.catalog import Job, Layout, Shape
from gpucourse.catalog.stages import Part, part, stages_of
from gpucourse.dryrun.sharded_stages import hold, share_out
from gpucourse.errors import BadInput
from gpucourse.models import Training, Transformer
from gpucourse.models.training import LOW, loss_context
from gpucourse.predict.schedules import schedule


def stage_part(shape: Shape, layout: Layout, rank: int) -> Part:
    """The layers of the one stage that the rank has."""
    stages = stages_of(layout, rank)
    if len(stages) > 1 or layout.schedule not in ("gpipe", "1f1b"):
        raise BadInput(f"schedule {layout.schedule} with {len(stages)} stages a rank has no dry run; "
                       "use gpipe or 1f1b, or predict.memory")
    return part(shape.layers, layout.stages, stages[0])


class Stage(Training):
    """A step of one rank. What other ranks would send, activations forward and gradients backward, is made here."""

    def __init__(self, shape: Shape, job: Job, rank: int, model: Transformer):
        super().__init__(shape, job, model=model)
        layout = job.layout
        self.actions = schedule(layout.schedule, layout.pp, job.accumulate).actions[rank]

    def __call__(self) -> None:
        job, layout, part = self.job, self.job.layout, self.model.part
        size = (job.micro_batch, job.seq)
        tokens = [torch.randint(self.shape.vocab, size) if part.first else None for _ in range(job.accumulate)]
        targets = [torch.randint(self.shape.vocab, size) if part.last else None for _ in range(job.accumulate)]
        flying: dict[int, tuple[Tensor, Tensor]] = {}  # micro-batch: what came in, what went out
        for kind, _, i in self.actions:
            if kind == "F":
                self.mark("forward")
                flying[i] = self.forward(tokens[i] if part.first else self.received().requires_grad_(), targets[i])
            else:
                self.mark("loss" if part.last else "last block")
                self.backward(flying.pop(i)[1])
        if layout.staged:
            share_out(self.model)
        self.mark("step")
        self.optimizer.step()
        self.mark("end")
        self.optimizer.zero_grad()

    def received(self) -> Tensor:
        """A stage's input [B, T, H], or with sequence parallelism [B, T/t, H], in the stream's precision."""
        job, layout = self.job, self.job.layout
        tokens = job.seq // (layout.tp if layout.sequence_parallel else 1)
        dtype = (torch.bfloat16 if job.bytes.weights == 2 else
                 LOW.get(job.precision, torch.float32) if layout.staged else torch.float32)
        return torch.empty(job.micro_batch, tokens, self.shape.hidden, dtype=dtype)

    def forward(self, came: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
        if targets is not None:
            with loss_context(self.job.layout):
                return came, self.loss(came, targets) / self.job.accumulate
        with self.casting():
            return came, self.model(came)

    def backward(self, went: Tensor) -> None:
        if self.job.layout.staged:
            hold(self.model)
        with loss_context(self.job.layout):
            went.backward(None if self.model.part.last else self.received())
