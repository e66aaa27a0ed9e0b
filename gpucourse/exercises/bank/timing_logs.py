"""Answers of 02.5 and 02.6: utilizations from a log, under the conventions in use."""

from gpucourse.catalog import gpu, shape
from gpucourse.exercises.kinds import Misconception, Pick, Quantity, one_of
from gpucourse.predict.compute import CONVENTIONS
from gpucourse.predict.utilization import mfu

STEP, GPUS, SEQUENCES, SEQ = 24.75, 64, 64, 8192  # a published run: B01, 331 tokens/s a GPU
RATE = SEQUENCES * SEQ / STEP / GPUS
LLAMA_70B, A100 = shape("llama-3.1-70b"), gpu("a100-80")


def used(rate: float = RATE, convention: str = "palm"):
    return mfu(LLAMA_70B, A100, rate, SEQ, convention=convention, recompute="full")


LOGS = {  # model, card, precision, sequence, tokens/s a GPU, what the dashboard prints in per cent
    "A": ("llama-2-13b", "a100-80", "bf16", 4096, 2162, 61.1),
    "B": ("llama-3.1-8b", "h100-sxm", "fp8", 8192, 14451, 37.6),
    "C": ("llama-3.1-8b", "h100-sxm", "bf16", 8192, 6667, 39.0),
    "D": ("llama-3.1-70b", "a100-80", "bf16", 8192, 331, 69.0),
}
CONVENTION_WHY = {
    "palm": "Under palm, with every parameter and the whole of attention, this log gives another figure: compute it.",
    "no-embedding": "Without the input embedding this log gives another figure: compute it.",
    "causal": "With half of attention left out this log gives another figure: compute it.",
    "recomputed": "With a second forward pass counted this log gives a larger figure: compute it.",
}


def figures(name: str) -> dict[str, float]:
    """The per cent that each convention gives for a log."""
    model, card, precision, seq, rate, _ = LOGS[name]
    each = {c: mfu(shape(model), gpu(card), rate, seq, 1, precision, c, "full") for c in CONVENTIONS}
    return {c: 100 * u.mfu for c, u in each.items()} | {"recomputed": 100 * each["palm"].hfu}


def convention_of(name: str) -> str:
    given = figures(name)
    return min(given, key=lambda convention: abs(given[convention] - LOGS[name][-1]))


def log_part(name: str) -> Pick:
    return one_of(CONVENTION_WHY, lambda: convention_of(name))


def in_palm(name: str) -> Quantity:
    others = (Misconception(lambda c=convention: figures(name)[c], says) for convention, says in (
        (convention_of(name), "That is what the dashboard prints, under its own convention."),
        ("recomputed", "That counts a second forward pass.")))
    return Quantity(expected=lambda: figures(name)["palm"], unit="%", within=2e-3, misconceptions=tuple(others))
