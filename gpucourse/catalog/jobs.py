"""A training job: how a shape is trained, and on how many ranks."""

from dataclasses import dataclass, replace
from functools import cached_property

from gpucourse.catalog.layouts import Layout
from gpucourse.errors import BadInput, positive_int, unknown


@dataclass(frozen=True)
class Precision:
    """Bytes an element. `compute` differs from `weights` under autocast; `master` is a second, fp32 copy of weights.

    fp8 is bf16-autocast whose matrix products take 8-bit operands, cast as they are needed.
    """

    name: str
    weights: int
    gradients: int
    moments: int
    compute: int
    master: int = 0

    @property
    def autocast(self) -> bool:
        return self.compute != self.weights


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", 4, 4, 4, 4),
        Precision("bf16", 2, 2, 2, 2),
        Precision("bf16-autocast", 4, 4, 4, 2),
        Precision("fp16-autocast", 4, 4, 4, 2),
        Precision("bf16-master", 2, 2, 4, 2, master=4),
        Precision("fp8", 4, 4, 4, 2),
    )
}
OPTIMIZERS = {"adamw": 2, "adamw-8bit": 2, "momentum": 1, "sgd": 0}  # moments an element
RECOMPUTES = ("none", "attention", "op", "op-2", "layer-K", "full")
GRADIENTS = {"": 0, "bf16": 2, "fp32": 4}  # bytes an element; "": as the precision has them


def recompute_every(recompute: str) -> int:
    """K where every K-th layer is recomputed in full: 1 for `full`, 0 where none is."""
    every = recompute.removeprefix("layer-")
    return int(every) if every != recompute and every.isdecimal() else int(recompute == "full")


def recompute_of_layers(recompute: str, layers: int) -> list[str]:
    """For each layer what is recomputed of it: none, attention, op, op-2 or full."""
    every = recompute_every(recompute)
    if not every:
        return [recompute] * layers
    return ["none" if (i + 1) % every else "full" for i in range(layers)]


@dataclass(frozen=True)
class Job:
    """One rank's part of a training run, and the layout of all ranks.

    micro_batch: sequences in a forward pass. seq: tokens a sequence. accumulate: forward passes an optimizer step; in
    a pipeline the micro-batches of its schedule.
    foreach: the optimizer works on lists of tensors (PyTorch's default on a GPU); fused: one kernel, no temporaries.
    recompute: what of each layer runs again in backward. `attention`: only scaled dot-product attention. `op`: all but
    the matrix products and attention. `op-2`: also every second product, the second, the fourth and so on. `full`: all
    of it, from the layer's input. `layer-K`: all of every K-th layer.
    chunked_loss: parts in which head and loss are computed, 0 for whole. offload: optimizer state lives in host memory.
    lora: rank of trained adapters on frozen matrices, 0 for none. grad_dtype: bf16, fp32, or "": the precision's own.
    """

    micro_batch: int = 1
    seq: int = 1024
    precision: str = "fp32"
    optimizer: str = "adamw"
    foreach: bool = True
    fused: bool = False
    recompute: str = "none"
    accumulate: int = 1
    chunked_loss: int = 0
    offload: bool = False
    lora: int = 0
    grad_dtype: str = ""
    layout: Layout = Layout()

    def __post_init__(self):
        for field in ("micro_batch", "seq", "accumulate"):
            positive_int(field.replace("_", "-"), getattr(self, field))
        for field in ("chunked_loss", "lora"):
            if getattr(self, field) != 0:
                positive_int(field.replace("_", "-"), getattr(self, field))
        for field, allowed in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("grad_dtype", GRADIENTS)):
            if getattr(self, field) not in allowed:
                raise unknown(field.replace("_", "-"), getattr(self, field), filter(None, allowed))
        if self.recompute == "layer-K" or self.recompute not in RECOMPUTES and not recompute_every(self.recompute):
            raise unknown("recompute", self.recompute, RECOMPUTES)
        if self.foreach and self.fused:
            raise BadInput("foreach and fused are both set; an optimizer step is one or the other")

    @property
    def tokens(self) -> int:
        """Tokens in one forward pass."""
        return self.micro_batch * self.seq

    @cached_property
    def bytes(self) -> Precision:
        precision = PRECISIONS[self.precision]
        return replace(precision, gradients=GRADIENTS[self.grad_dtype] or precision.gradients)

    def but(self, **changes) -> "Job":
        """The same job with some choices changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        step = "fused" if self.fused else "foreach" if self.foreach else "one tensor at a time"
        parts = [self.precision, f"{self.optimizer} ({step})", f"micro-batch {self.micro_batch}", f"seq {self.seq}"]
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        if self.accumulate > 1:
            parts.append(f"accumulate {self.accumulate}")
        if self.chunked_loss:
            parts.append(f"loss in {self.chunked_loss} parts")
        if self.lora:
            parts.append(f"LoRA {self.lora}")
        if self.offload:
            parts.append("optimizer state in host memory")
        if self.grad_dtype:
            parts.append(f"{self.grad_dtype} gradients")
        return " · ".join(parts)
