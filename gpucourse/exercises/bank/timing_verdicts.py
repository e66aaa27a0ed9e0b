"""Parts of 02.7: figures that are too good or too bad, what explains each, and what they should have been."""

from gpucourse.catalog import gpu
from gpucourse.exercises.kinds import Misconception, Pick, Quantity, one_of

A100, H100 = gpu("a100-80"), gpu("h100-sxm")

WRONG_WITH = {"A": "sparse peak", "B": "another card's peak", "C": "no synchronisation",
              "D": "another precision's peak", "E": "first call", "F": "nothing"}
WRONG_WHY = {
    "sparse peak": "The sparse peak is twice the dense one: it makes a figure half as large, never larger.",
    "another card's peak": "Which two cards are there, and what is the ratio of their peaks? It does not give this.",
    "another precision's peak": "Which precision would explain the figure, and is there any sign that it was used?",
    "no synchronisation": "Without waiting, times come out too short. Is there a time here that is too short for the "
                          "work?",
    "first call": "One slow call in an average explains figures that are too slow, and not by a fixed factor.",
    "nothing": "Two figures that should agree do not, or one cannot be: compute what follows from what is known.",
}


def wrong_part(name: str) -> Pick:
    return one_of(WRONG_WHY, WRONG_WITH[name])


PRINTED, PRODUCT, BROADCASTS, MEAN_MS, LATER_MS = 104, 2 * 4096**3, 100, 20, 0.14
RTX = gpu("rtx-4090")
MENDED = {
    "B, % of the right peak": Quantity(
        expected=PRINTED * A100.peak("bf16") / H100.peak("bf16"), unit="%", within=2e-3, misconceptions=(
            Misconception(PRINTED * H100.peak("bf16") / A100.peak("bf16"), "The other way round: the same FLOPs are a "
                                                                          "smaller share of a larger peak."),
            Misconception(PRINTED / 2, "That halves it, as for a sparse peak. Which cards are named?"))),
    "C, least ms": Quantity(
        expected=1e3 * PRODUCT / RTX.peak("bf16"), unit="ms", within=2e-3, misconceptions=(
            Misconception(500 * PRODUCT / RTX.peak("bf16"), "A multiply-add is two FLOPs, and the peak is the dense "
                                                            "one."),)),
    "E, ms of the first call": Quantity(
        expected=BROADCASTS * MEAN_MS - (BROADCASTS - 1) * LATER_MS, unit="ms", within=1e-3, misconceptions=(
            Misconception(BROADCASTS * MEAN_MS, "That is all hundred calls together: the other 99 took 0.14 ms each."),
            Misconception(MEAN_MS, "That is the mean over a hundred calls, nearly all of them short."))),
}
