"""A training job: how a shape is trained, on one device."""

from dataclasses import dataclass, replace

from gpucourse.errors import BadInput, positive_int, unknown


@dataclass(frozen=True)
class Precision:
    """Bytes an element. `compute` differs from `weights` under autocast; `master` is a second, fp32 copy of weights."""

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
    )
}
OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}  # moments an element
RECOMPUTES = ("none", "full")


@dataclass(frozen=True)
class Job:
    """One device's part of a training run.

    micro_batch: sequences in a forward pass. seq: tokens a sequence. accumulate: forward passes an optimizer step.
    foreach: the optimizer works on lists of tensors (PyTorch's default on a GPU); fused: one kernel, no temporaries.
    recompute: `full` keeps each layer's input and runs its forward again in backward.
    """

    micro_batch: int = 1
    seq: int = 1024
    precision: str = "fp32"
    optimizer: str = "adamw"
    foreach: bool = True
    fused: bool = False
    recompute: str = "none"
    accumulate: int = 1

    def __post_init__(self):
        for field in ("micro_batch", "seq", "accumulate"):
            positive_int(field.replace("_", "-"), getattr(self, field))
        for field, allowed in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("recompute", RECOMPUTES)):
            if getattr(self, field) not in allowed:
                raise unknown(field, getattr(self, field), allowed)
        if self.foreach and self.fused:
            raise BadInput("foreach and fused are both set; an optimizer step is one or the other")

    @property
    def tokens(self) -> int:
        """Tokens in one forward pass."""
        return self.micro_batch * self.seq

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]

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
        return " · ".join(parts)
