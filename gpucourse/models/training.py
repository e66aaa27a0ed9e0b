"""One training set-up, built from a shape and a job: what dry runs, measurements and lessons all run."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucourse.catalog import Job, Layout, Shape
from gpucourse.catalog.stages import Part
from gpucourse.errors import BadInput
from gpucourse.models.instants import follow
from gpucourse.models.lora import adapt
from gpucourse.models.transformer import Transformer

OPTIMIZERS: dict[str, Callable] = {
    "adamw": lambda parameters, **how: torch.optim.AdamW(parameters, lr=3e-4, **how),
    "momentum": lambda parameters, **how: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, **how),
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=1e-2, **how),
}


LOW = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}  # what is computed in on fp32 weights


@contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[dict]:
    """Parameter groups of an optimizer, which can work on lists of tensors only if one mesh divides them all."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": group} for group in groups.values()]


def loss_context(layout: Layout) -> AbstractContextManager:
    """Forward and backward of a cross-entropy whose logits stay divided along the vocabulary happen in here."""
    if not layout.vocab_parallel_loss:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


def network(shape: Shape, job: Job, device: str = "cpu", part: Part | None = None) -> Transformer:
    """The model, or a part of it, in the precision and with the recomputation of `job`."""
    with torch.device(device), default_dtype(torch.bfloat16 if job.bytes.weights == 2 else torch.float32):
        model = Transformer(shape, job.recompute, part)
        return adapt(model, job.lora) if job.lora else model


class Training:
    """A model, its optimizer and one step of training.

    `step(tokens, targets)` takes int64 tensors of shape [micro_batch, seq] and returns the loss, a scalar tensor.
    `training()` runs one step on random tokens. `follow(mark)` calls `mark` with each instant as the step reaches it.
    model: the network where it exists already, as one that models.parallel has laid out; otherwise it is made here.
    """

    def __init__(self, shape: Shape, job: Job, device: str = "cpu", seed: int = 0, model: Transformer | None = None):
        if job.seq > shape.context:
            raise BadInput(f"seq {job.seq} is longer than the context of {shape.name}: {shape.context}")
        for name in (job.precision, job.optimizer):
            if name in ("bf16-master", "fp8", "adamw-8bit"):
                raise BadInput(f"{name} is predicted, not trained here; use one of bf16, bf16-autocast with adamw")
        if job.offload:
            raise BadInput("offload is predicted, not trained here; leave it out")
        torch.manual_seed(seed)
        self.shape, self.job, self.device = shape, job, device
        self.model = model or network(shape, job, device)
        groups = by_mesh(p for p in self.model.parameters() if p.requires_grad)
        self.optimizer = OPTIMIZERS[job.optimizer](groups, foreach=job.foreach, fused=job.fused)
        self.autocast = LOW.get(job.precision) if job.layout.shard != "zero3" else None  # its policy casts instead
        self.scaler = torch.amp.GradScaler(torch.device(device).type, enabled=job.precision == "fp16-autocast")
        self.mark: Callable[[str], None] = lambda instant: None

    def casting(self) -> AbstractContextManager:
        return torch.autocast(torch.device(self.device).type, self.autocast, enabled=self.autocast is not None)

    def loss(self, tokens: Tensor, targets: Tensor, model: Transformer | None = None) -> Tensor:
        """Mean cross-entropy over the micro-batch's tokens; the logits, where not in parts, live until this returns.

        model: the last stage of a pipeline, where it is not the only one here.
        """
        model = model or self.model
        with self.casting():
            if self.job.chunked_loss:
                loss = model(tokens, targets, self.job.chunked_loss)
            else:
                logits = model(tokens)  # [B, T, V]; with a vocabulary-parallel loss [B, T, V/t] of a DTensor
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            return loss.to_local() if self.job.layout.vocab_parallel_loss else loss

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward over `accumulate` micro-batches, then one step of the optimizer."""
        total = torch.zeros((), device=self.device)
        for i in range(self.job.accumulate):
            if self.job.layout.reduce == "last":
                self.model.set_requires_gradient_sync(i == self.job.accumulate - 1)
            self.mark("forward")
            with loss_context(self.job.layout):
                loss = self.loss(tokens, targets) / self.job.accumulate
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.mark("step")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.mark("end")
        self.optimizer.zero_grad()
        return total

    def __call__(self) -> None:
        size = (self.job.micro_batch, self.job.seq)
        tokens = torch.randint(self.shape.vocab, size, device=self.device)
        self.step(tokens, tokens.roll(-1, dims=1))

    def follow(self, mark: Callable[[str], None]) -> None:
        self.mark = mark
        follow(self.model, mark)


def training(shape: Shape, job: Job, device: str = "cpu", seed: int = 0) -> Training:
    """The set-up that `shape` and `job` describe, on `device`, with weights drawn from `seed`."""
    return Training(shape, job, device, seed)

