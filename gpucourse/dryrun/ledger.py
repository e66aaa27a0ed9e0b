"""Run a training step on fake tensors and keep, for each instant, the ledger at its highest moment."""

from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpucourse.catalog import Job, Shape
from gpucourse.catalog.stages import part, stages_of
from gpucourse.dryrun.processes import one_rank_of
from gpucourse.dryrun.quiet import quiet_propagation
from gpucourse.errors import BadInput
from gpucourse.measure.live_storages import LiveStorages
from gpucourse.models import Training
from gpucourse.models.instants import in_forward


class InstantLedger(LiveStorages):
    """Bytes by category at the highest moment of each instant.

    What a forward operation makes is an activation; what backward or the optimizer makes is temporary, until it turns
    out to be a gradient or the optimizer's state.
    """

    def __init__(self):
        super().__init__()
        self.instant = None
        self.at: dict[str, Counter] = {}
        self.operation_at: dict[str, str] = {}
        self.began: dict[str, Counter] = {}  # what was alive when the instant last began

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as with real tensors; its fake version would make a copy
        return super().__torch_dispatch__(func, types, args, kwargs)

    def made(self, parameter: torch.nn.Parameter) -> None:
        self.retag(parameter.grad, "gradients")

    def mark(self, instant: str) -> None:
        self.instant = instant
        self.began[instant] = Counter(self.by_tag)
        self._keep()

    def tag(self, func) -> str:
        return "activations" if in_forward() and self.instant not in ("step", "end") else "temporaries"

    def changed(self) -> None:
        self._keep()

    def _keep(self) -> None:
        if self.instant in (None, "end"):
            return
        if self.live > sum(self.at.get(self.instant, {}).values()):
            self.at[self.instant] = Counter(self.by_tag)
            self.operation_at[self.instant] = self.operation


def step_ledger(shape: Shape, job: Job, rank: int = 0) -> InstantLedger:
    """The second training step of (shape, job) on fake CPU tensors: no memory is allocated, nothing is computed.

    rank: of the pipeline, where job.layout has one.
    """
    layout, ledger = job.layout, InstantLedger()
    for name, used in {"DDP and ZeRO-1 and 2": layout.dp > 1 and layout.shard != "zero3", "cp": layout.cp > 1,
                       "ep": layout.ep > 1}.items():
        if used:
            raise BadInput(f"{name} has no dry run; use predict.memory, or measure on real ranks")
    if layout.ranks == 1:
        with FakeTensorMode():
            return second_step(Training(shape, job), ledger)
    from gpucourse.models.parallel import laid_out  # DTensor takes half a second to import

    stages = stages_of(layout, rank) if layout.pp > 1 else [0]
    with one_rank_of(layout.ranks), quiet_propagation():
        # on meta, as meshes cannot be made of fake tensors
        models = {i: laid_out(shape, job, "meta", part(shape.layers, layout.stages, i)) for i in stages}
        with FakeTensorMode(allow_non_fake_inputs=True):  # a mesh of two axes is a real tensor
            for model in models.values():
                model.to_empty(device="cpu")
            if layout.pp == 1:
                return second_step(Training(shape, job, model=model), ledger)
            from gpucourse.dryrun.pipeline import Rank  # pipelining takes a second

            return second_step(Rank(shape, job, rank, models, ledger.made), ledger)


def second_step(training: Training, ledger: InstantLedger) -> InstantLedger:
    training.scaler = torch.amp.GradScaler(enabled=False)  # it asks for values, which fake tensors do not have
    for parameter in filter(lambda p: p.requires_grad, training.model.parameters()):
        parameter.register_post_accumulate_grad_hook(ledger.made)
    with ledger:
        ledger.own(training.model)
        first_step(training)
        ledger.own(training.optimizer)
        training.follow(ledger.mark)
        training()
    return ledger


def first_step(training: Training) -> None:
    """Makes the optimizer's state, for which one micro-batch is enough; a pipeline plays its schedule."""
    job = training.job
    if job.layout.pp == 1:
        training.job = job.but(accumulate=1)
    training()
    training.job = job
