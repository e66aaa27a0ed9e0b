"""One rank of a pipeline by itself: its stages' forwards and backwards in the schedule's order, neighbours imagined.

A backward in halves, for the input and for the weights, is torch.distributed.pipelining's own: private functions, as a
real stage needs neighbours, of which this is the one wrapper.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from gpucourse.catalog import Job, Shape
from gpucourse.dryrun import sharded_stages as sharded
from gpucourse.evidence import WEIGHTS
from gpucourse.models import Training, Transformer
from gpucourse.models.instants import follow
from gpucourse.models.training import LOW, loss_context
from gpucourse.predict.schedules import schedule


class Rank(Training):
    """A step of one rank. What other ranks would send, activations forward and gradients backward, is made here.

    made: called with each parameter whose gradient a half of a backward has made, which autograd's hooks do not see.
    """

    def __init__(self, shape: Shape, job: Job, rank: int, models: dict[int, Transformer],
                 made: Callable[[nn.Parameter], None]):
        super().__init__(shape, job, model=nn.ModuleList(models.values()))
        layout = job.layout
        self.actions = schedule(layout.schedule, layout.pp, job.accumulate, layout.chunks).actions[rank]
        if layout.staged:
            self.actions = sharded.with_sharding(self.actions, job.accumulate, layout.schedule)
        self.models, self.made = models, made

    def __call__(self) -> None:
        stages = {number: Stage(self, model) for number, model in self.models.items()}
        for kind, number, i in self.actions:
            stages[number].play(kind, i)
        self.mark("step")
        self.optimizer.step()
        self.mark("end")
        self.optimizer.zero_grad()

    def follow(self, mark: Callable[[str], None]) -> None:
        self.mark = mark
        for model in self.models.values():
            follow(model, mark)


class Stage:
    """One step of one stage. came, went: of each micro-batch in flight what came in and what went out.

    owed: of each whose backward is half done, the gradient that came, and what the other half begins from.
    """

    def __init__(self, rank: Rank, model: Transformer):
        self.rank, self.model, self.part, self.job = rank, model, model.part, rank.job
        size = (self.job.accumulate, self.job.micro_batch, self.job.seq)
        self.tokens = torch.randint(rank.shape.vocab, size) if self.part.first else None
        self.targets = torch.randint(rank.shape.vocab, size) if self.part.last else None
        self.came: dict[int, Tensor] = {}
        self.went: dict[int, Tensor] = {}
        self.owed: dict[int, tuple[Tensor | None, list]] = {}
        self.gathering: list = []  # what to wait for

    def play(self, kind: str, i: int) -> None:
        if kind in sharded.DOES:
            self.gathering += sharded.DOES[kind](self.model)
            return
        last = "loss" if self.part.last else "last block"
        self.rank.mark({"F": "forward", "W": "last block" if self.part.first else WEIGHTS}.get(kind, last))
        for handle in self.gathering:
            handle.wait()
        self.gathering.clear()
        if kind == "F":
            self.came[i] = self.tokens[i] if self.part.first else self.received().requires_grad_()
            self.went[i] = self.forward(i)
            return
        if self.job.layout.staged:
            sharded.hold(self.model)
        with loss_context(self.job.layout):
            {"B": self.backward, "I": self.for_input, "W": self.for_weights}[kind](i)

    def received(self) -> Tensor:
        """A stage's input [B, T, H], or with sequence parallelism [B, T/t, H], in the stream's precision."""
        job, layout = self.job, self.job.layout
        tokens = job.seq // (layout.tp if layout.sequence_parallel else 1)
        dtype = (torch.bfloat16 if job.bytes.weights == 2 else
                 LOW.get(job.precision, torch.float32) if layout.staged else torch.float32)
        return torch.empty(job.micro_batch, tokens, self.rank.shape.hidden, dtype=dtype)

    def forward(self, i: int) -> Tensor:
        if self.part.last:
            with loss_context(self.job.layout):
                return self.rank.loss(self.came[i], self.targets[i], self.model) / self.job.accumulate
        with self.rank.casting():
            return self.model(self.came[i])

    def gradient(self) -> Tensor | None:
        """Of what went out; the loss needs none."""
        return None if self.part.last else self.received()

    def backward(self, i: int) -> None:
        went, _ = self.went.pop(i), self.came.pop(i)
        went.backward(self.gradient())

    def for_input(self, i: int) -> None:
        """The first stage has no input that could have a gradient: all of its backward is done for the weights."""
        gradient, groups = self.gradient(), []
        if not self.part.first:
            given = None if gradient is None else [gradient]
            _, groups = stage_backward_input([self.went[i]], given, [self.came[i]], self.model.parameters())
        self.owed[i] = gradient, groups

    def for_weights(self, i: int) -> None:
        went, (gradient, groups), _ = self.went.pop(i), self.owed.pop(i), self.came.pop(i)
        if self.part.first:
            went.backward(gradient)
        else:
            stage_backward_weight(self.model.parameters(), groups)
            for parameter in filter(lambda p: p.grad is not None, self.model.parameters()):
                self.rank.made(parameter)
