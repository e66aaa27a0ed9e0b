"""Parts of 01.1: bytes a parameter of weights, gradients and optimizer state."""

from gpucourse.catalog import Job, gpt
from gpucourse.exercises.kinds import Misconception, Quantity
from gpucourse.predict import memory, parameters


def state_bytes(precision: str, optimizer: str) -> float:
    """Bytes a parameter of weights, gradients and optimizer state, without AdamW's step counts."""
    ledger = memory(gpt("any", 2, 64, 2), Job(precision=precision, optimizer=optimizer))
    kept = [line for line in ledger.lines if line.name in
            ("weights", "gradients", "optimizer moments", "master weights")]
    return sum(line.bytes for line in kept) / parameters(gpt("any", 2, 64, 2)).total


def per_parameter(precision: str, optimizer: str, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: state_bytes(precision, optimizer), unit="bytes", within=0,
                    misconceptions=misconceptions)


STATES = {
    "fp32, AdamW": per_parameter(
        "fp32", "adamw",
        Misconception(4, "That is the weight alone, what it takes to load."),
        Misconception(8, "Weight and gradient. What does AdamW remember from step to step?"),
        Misconception(12, "One of three is missing: AdamW keeps a mean of the gradients *and* of their squares."),
        Misconception(20, "That counts the list that foreach makes inside step(). It is gone when step() returns.")),
    "fp32, SGD with momentum": per_parameter(
        "fp32", "momentum",
        Misconception(8, "SGD without momentum keeps nothing. With momentum it keeps one running mean."),
        Misconception(16, "That is AdamW. Momentum keeps one moment, not two.")),
    "bf16 autocast, AdamW": per_parameter(
        "bf16-autocast", "adamw",
        Misconception(8, "That is a model whose weights *are* bf16. Autocast casts inside the operations: what is "
                         "stored, and what the optimizer sees, stays fp32."),
        Misconception(12, "One part is missing, or two are taken as 16-bit. Which of weight, gradient and the two "
                          "moments does autocast change at rest?"),
        Misconception(14, "The weights stay fp32. The 16-bit copies that autocast makes come on top: activations."),
        Misconception(18, "The 16-bit copies of the weights are kept for backward: they are activations, not states.")),
    "pure bf16, AdamW": per_parameter(
        "bf16", "adamw",
        Misconception(16, "PyTorch makes the moments in the weights' dtype: bf16 weights have bf16 moments."),
        Misconception(12, "The moments are bf16 too: PyTorch makes them in the weights' dtype.")),
    "bf16-master, AdamW": per_parameter(
        "bf16-master", "adamw",
        Misconception(12, "The optimizer also keeps an fp32 copy of the weights, beside the two fp32 moments."),
        Misconception(8, "That is pure bf16. Here the optimizer's part is fp32: moments, and a copy of the weights."),
        Misconception(18, "The gradients are bf16 in this set-up; fp32 gradients would give this number.")),
}
