"""Parts of 04.1, 04.2, 04.8: what a value becomes in a format, where a running sum stops, which gradients vanish."""

import math

from gpucourse.exercises.kinds import Misconception, Quantity
from gpucourse.predict.formats import BF16, E2M1, E4M3, FP16, Format, rounded


def becomes(value: float, format: Format, *misconceptions: Misconception, above: float = 0.0, in_: float = 1.0,
            unit: str = "") -> Quantity:
    """What `value` becomes; where neighbours differ by less than a hundredth, how far it is `above` a number."""
    return Quantity(expected=lambda: (rounded(value, format, saturate=True) - above) / in_, unit=unit, within=0,
                    misconceptions=misconceptions)


ROUNDINGS = {
    "1 + 1/256 in bf16, above 1": becomes(
        1 + 1 / 256, BF16,
        Misconception(2, "That is the neighbour above. Halfway between two numbers the even mantissa wins."),
        Misconception(1, "With 7 bits of mantissa the number after 1 is 1 + 1/128."),
        above=1, in_=1 / 256, unit="256ths"),
    "1 + 3/256 in bf16, above 1": becomes(
        1 + 3 / 256, BF16,
        Misconception(2, "That rounds a tie down. Its mantissa is 1, the neighbour's is 2: which is even?"),
        Misconception(3, "With 7 bits of mantissa the numbers above 1 are 128ths apart."),
        Misconception(0, "1 is one and a half steps away; two numbers are nearer."),
        above=1, in_=1 / 256, unit="256ths"),
    "2051 in fp16, above 2048": becomes(
        2051, FP16,
        Misconception(3, "With 10 bits of mantissa and the one that is not stored, odd numbers end at 2048."),
        Misconception(2, "A tie between 2050 and 2052. In steps of 2 from 2048 on, which place is even?"),
        Misconception(0, "That would be bf16's answer, with steps of 16 here. fp16's are 2."),
        above=2048),
    "19 in e4m3": becomes(
        19, E4M3,
        Misconception(19, "With 3 bits of mantissa there are eight numbers from 16 to 32."),
        Misconception(18, "A tie between 18 and 20. Which of the two mantissas is even?"),
        Misconception(16, "That is e5m2's answer to 17; e4m3 has steps of 2 here.")),
    "1000 in e4m3": becomes(
        1000, E4M3,
        Misconception(480, "The code for 480 is taken: it is NaN. What is the largest number below it?"),
        Misconception(240, "That is an e4m3 with infinities. This one has numbers at the top exponent too."),
        Misconception(57344, "That is e5m2's largest number.")),
    "5 in e2m1": becomes(
        5, E2M1,
        Misconception(6, "A tie between 4 and 6. One bit of mantissa: which of them has a 0?"),
        Misconception(5, "The numbers are 0, 0.5, 1, 1.5, 2, 3, 4, 6.")),
    "2e-8 in fp16": becomes(
        2e-8, FP16,
        Misconception(2.0**-24, "That is the smallest number of fp16. Is 2e-8 at least half of it?"),
        Misconception(2e-8, "The smallest number of fp16 is 2⁻²⁴, a subnormal."),
        Misconception(2.0**-14, "That is the smallest *normal* number; there are smaller ones.")),
}


def stands_still(format: Format, added: float) -> float:
    """Where a running sum in `format` stops when `added` is added for ever."""
    total = 0.0
    while (more := rounded(total + added, format)) != total:
        total = more
    return total


def stop(format: Format, added: float, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: stands_still(format, added), unit="", within=0, misconceptions=misconceptions)


NOT_THE_LARGEST = "The sum stops long before the largest number: when the spacing has outgrown what is added."
STOPS = {
    "fp16, adding 1": stop(
        FP16, 1,
        Misconception(FP16.largest, NOT_THE_LARGEST),
        Misconception(1024, "The spacing at 1024 is 1: adding 1 still moves the sum.")),
    "bf16, adding 1/4": stop(
        BF16, 0.25,
        Misconception(256, "That is where adding 1 stops. What is added here is a quarter of it."),
        Misconception(32, "The spacing at 32 is 1/4: adding 1/4 still moves the sum.")),
    "bf16, adding 3": stop(
        BF16, 3,
        Misconception(768, "The sum is rounded after each addition and does not stay a multiple of 3. When is 3 less "
                           "than half of the spacing?"),
        Misconception(512, "The spacing at 512 is 4, and 3 is more than half of it: the sum moves on, by 4."),
        Misconception(256, "That is where adding 1 stops.")),
    "e4m3, adding 1": stop(
        E4M3, 1,
        Misconception(E4M3.largest, NOT_THE_LARGEST),
        Misconception(8, "The spacing at 8 is 1: adding 1 still moves the sum.")),
}

TOKENS = 2048


def vanishes(scale: int) -> Quantity:
    """The largest power of two p for which p · 2^scale / TOKENS is zero in fp16."""
    def exponent(smallest: float) -> float:
        return math.log2(smallest * TOKENS) - scale

    return Quantity(expected=exponent(FP16.smallest / 2), unit="", within=0, misconceptions=(
        Misconception(exponent(FP16.smallest), "That is where the smallest number itself is. What is more than half of "
                                               "it is rounded up to it."),
        Misconception(exponent(FP16.smallest_normal), "Below the smallest normal number there are the subnormal ones."),
        Misconception(math.log2(FP16.smallest / 2) - scale, "That is the gradient. p is divided by the tokens first."),
        *([Misconception(exponent(FP16.smallest / 2) + 2 * scale, "A scale makes the gradient larger before it is "
                                                                  "cast: smaller p survive.")] if scale else [])))
