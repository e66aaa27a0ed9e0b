"""Parts of 04.6 and 04.7: bits for a scale, and a precision for a card."""

from collections.abc import Callable

from gpucourse.catalog import gpu
from gpucourse.catalog.units import GiB
from gpucourse.exercises.bank.memory_states import state_bytes
from gpucourse.exercises.kinds import Misconception, Pick, Quantity
from gpucourse.predict.blocks import MXFP4, MXFP8, NVFP4

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


def times_fp32(card: str, kind: str, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: gpu(card).tflops[kind] / gpu(card).tflops["fp32"], unit="×", misconceptions=(
        Misconception(1, "That would be no reason to choose it. Look at the card's row in the table of peaks."),
        Misconception(2, "Half the bits are twice the rate within one kind of unit. The table has what tensor cores "
                         "reach."), *misconceptions))


CHOSEN = {
    "T4, × its fp32 peak": times_fp32("t4", "fp16"),
    "A100, no code to change, × its fp32 peak": times_fp32(
        "a100-80", "tf32", Misconception(lambda: gpu("a100-80").tflops["bf16"] / gpu("a100-80").tflops["fp32"],
                                         "That is what 16 bits reach. A setting does not make the tensors 16-bit.")),
    "full bf16 at 1e-5, bytes a parameter": Quantity(
        expected=lambda: state_bytes("bf16", "adamw"), unit="bytes", within=0, misconceptions=(
            Misconception(16, "That is fp32, with or without autocast: weight, gradient and two moments of 4 bytes."),
            Misconception(12, "PyTorch makes the moments in the weights' dtype: they have two bytes too."),
            Misconception(4, "Weight and gradient. What does AdamW remember from step to step?"))),
}
