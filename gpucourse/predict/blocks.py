"""Block-scaled formats: small numbers that share a scale with their neighbours.

Sources: OCP Microscaling Formats 1.0 (MXFP8, MXFP4: 32 numbers share a power of two); NVIDIA's NVFP4 (16 numbers share
an e4m3 scale, and the tensor one fp32 scale). Steps between are rounded to fp32, as in a kernel that works in fp32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpucourse.errors import BadInput
from gpucourse.predict.formats import E2M1, E4M3, FP32, Format, rounded

SCALE_BITS = 8  # of a block's scale, in all three


@dataclass(frozen=True)
class BlockFormat:
    """element: the format of one number. block: how many share a scale. scale: its format, None for a power of two."""

    name: str
    element: Format
    block: int
    scale: Format | None = None

    @property
    def bits(self) -> float:
        """Bits an element, its part of the block's scale included."""
        return self.element.bits + SCALE_BITS / self.block


MXFP8 = BlockFormat("mxfp8", E4M3, 32)
MXFP4 = BlockFormat("mxfp4", E2M1, 32)
NVFP4 = BlockFormat("nvfp4", E2M1, 16, scale=E4M3)
BLOCK_FORMATS = {f.name: f for f in (MXFP8, MXFP4, NVFP4)}


def fp32(value: float) -> float:
    return rounded(value, FP32)


def scaled(values: Sequence[float], element: Format, scale: float) -> list[float]:
    """Each value divided by `scale`, rounded to `element`, saturating, and multiplied again."""
    return [fp32(rounded(fp32(value / scale), element, saturate=True) * scale) for value in values]


def whole_scale(values: Sequence[float], element: Format) -> float:
    """The one scale that takes the largest of `values` to the largest number of `element`; 1 where all are 0."""
    return fp32(max(map(abs, values)) / element.largest) or 1.0


def block_scaled(values: Sequence[float], format: BlockFormat) -> list[float]:
    """What the values become, as fp32. Their number must be a multiple of the block."""
    if len(values) % format.block or not values:
        raise BadInput(f"{len(values)} values for {format.name}: give a multiple of its block, {format.block}")
    whole = fp32(max(map(abs, values)) / fp32(format.scale.largest * format.element.largest)) if format.scale else 1.0
    result = []
    for begin in range(0, len(values), format.block):
        block = values[begin:begin + format.block]
        result += scaled(block, format.element, block_scale(max(map(abs, block)), format, whole))
    return result


def block_scale(largest: float, format: BlockFormat, whole: float) -> float:
    """The scale of a block from the largest magnitude in it; 1 where all of it is 0."""
    if not largest:
        return 1.0
    if format.scale is None:  # the power of two that brings it to the element's highest exponent
        exponent = math.frexp(largest)[1] - math.frexp(format.element.largest)[1]
        return math.ldexp(1.0, max(-127, min(127, exponent)))
    wanted = fp32(fp32(largest / format.element.largest) / whole)
    return fp32(rounded(wanted, format.scale, saturate=True) * whole) or 1.0
