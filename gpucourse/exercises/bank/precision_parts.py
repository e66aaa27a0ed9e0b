"""Parts of 04.1, 04.2, 04.6 and 04.7: roundings, sums that stop, bits for a scale, a precision for a card."""

from collections.abc import Callable

from gpucourse.catalog import gpu
from gpucourse.catalog.units import GiB
from gpucourse.exercises.kinds import Misconception, Pick, Quantity
from gpucourse.predict.blocks import MXFP4, MXFP8, NVFP4
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


ELEMENTS = 8e9


def weights_gib(bits: float, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=ELEMENTS * bits / 8 / GiB, unit="GiB", within=1e-3, misconceptions=(
        Misconception(ELEMENTS * bits / 8 / 1e9, "That is GB: a GiB is 2³⁰ bytes."), *misconceptions))


NO_SCALE = "That leaves out the block's scale."


def without_scale(bits: int) -> tuple[Misconception, ...]:
    return (Misconception(ELEMENTS * bits / 8 / GiB, NO_SCALE),
            Misconception(ELEMENTS * bits / 8 / 1e9, "That is GB, and it leaves out the block's scale."))


BITS = {
    "mxfp8, bits": Quantity(expected=MXFP8.bits, unit="bits", within=0, misconceptions=(
        Misconception(8, NO_SCALE),
        Misconception(16, "The 8 bits of the scale are shared by the whole block."),
        Misconception(8.5, "Its blocks have 32 elements."))),
    "nvfp4, bits": Quantity(expected=NVFP4.bits, unit="bits", within=0, misconceptions=(
        Misconception(4, NO_SCALE),
        Misconception(4.25, "That is a block of 32. NVFP4 has blocks of 16."))),
    "bf16, GiB": weights_gib(16),
    "mxfp8, GiB": weights_gib(MXFP8.bits, *without_scale(8)),
    "mxfp4, GiB": weights_gib(MXFP4.bits, *without_scale(4)),
    "nvfp4, GiB": weights_gib(NVFP4.bits, *without_scale(4)),
}

WAYS = ("fp32", "tf32", "fp16 + loss scale", "bf16 autocast", "bf16 + stochastic rounding", "fp8")


def sixteen_bits(card: str) -> str:
    """What a card's tensor cores multiply in 16 bits, and what it takes to train in it."""
    return "bf16 autocast" if "bf16" in gpu(card).tflops else "fp16 + loss scale"


def has(card: str, kind: str) -> str:
    return kind if kind in gpu(card).tflops else sixteen_bits(card)


def way(right: Callable[[], str] | str, **why: str) -> Pick:
    reasons = {"fp32": "The tensor cores stand idle: look at the first column of the table of peaks.",
               "tf32": "That keeps fp32's bytes. Is there nothing faster on this device, or nothing like it at all?",
               "fp16 + loss scale": "It works, and needs a scale to be searched. What on this device needs none?",
               "bf16 autocast": "Look at the table of peaks, and at what autocast stores.",
               "bf16 + stochastic rounding": "It saves memory and pays with noise. Is memory what is short here?",
               "fp8": "Look at the table of peaks: does this device multiply it, and has the recipe been tried?"}
    named = {"fp16": "fp16 + loss scale", "bf16": "bf16 autocast", "stochastic": "bf16 + stochastic rounding"}
    return Pick(options={key: key for key in WAYS}, right=right,
                why=reasons | {named.get(key, key): says for key, says in why.items()})


SITUATIONS = {
    "T4": way(lambda: sixteen_bits("t4"),
              bf16="A T4 has no rate for bf16: it is emulated there, and slower than fp32."),
    "A100": way(lambda: sixteen_bits("a100-80")),
    "A100, no code to change": way(lambda: has("a100-80", "tf32"),
                                   bf16="Autocast is code: a context around the forward pass.",
                                   fp32="One setting makes the same program use the tensor cores."),
    "H100, large products": way(lambda: has("h100-sxm", "fp8"),
                                bf16="It is the safe choice, at half of the rate. The situation says that the step is "
                                     "products and that the recipe has been tried."),
    "full bf16 at 1e-5": way("bf16 + stochastic rounding",
                             bf16="Autocast stores fp32 weights, gradients and moments: 16 bytes a parameter.",
                             fp8="fp8 products leave weights, gradients and moments as they are: 16 bytes a parameter.",
                             fp16="That stores 16 bytes a parameter as well.", fp32="16 bytes a parameter.",
                             tf32="tf32 changes products, not bytes: 16 a parameter."),
    "laptop": way("fp32", bf16="Emulated: its products take many times as long as fp32's.",
                  fp16="Most CPUs have no fast kernel for it at all.", tf32="Only tensor cores read fp32 that way.",
                  stochastic="The products would still be emulated.", fp8="Nothing here multiplies 8-bit floats."),
}
