"""Floating-point formats by their bits: what a number becomes in each, in whole-number arithmetic.

A number is a sign, an exponent field and a mantissa field. Sources: IEEE 754-2019 (fp32, fp16); NVIDIA's TF32; Google's
bfloat16; Micikevicius et al., FP8 Formats for Deep Learning, 2022 (e4m3, e5m2); OCP Microscaling Formats 1.0 (e2m1).
"""

import math
from dataclasses import dataclass

from gpucourse.errors import BadInput, unknown

DOUBLE = 53  # bits of a Python float's significand: every value that is rounded here is one


@dataclass(frozen=True)
class Format:
    """exponent, mantissa: bits of the two fields, beside one of sign.

    top: what the highest codes mean. `ieee`: the highest exponent is infinity and NaN. `nan`: only the highest code of
    all is taken, by NaN, and there is no infinity. `finite`: every code is a number.
    """

    name: str
    exponent: int
    mantissa: int
    top: str = "ieee"

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number: below it numbers keep its spacing and lose bits."""
        return 2 - 2 ** (self.exponent - 1)

    @property
    def largest_code(self) -> int:
        """The code of the largest number, without its sign."""
        codes = 1 << (self.exponent + self.mantissa)
        return codes - {"ieee": (1 << self.mantissa) + 1, "nan": 2, "finite": 1}[self.top]

    @property
    def largest(self) -> float:
        return decode(self.largest_code, self)

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.lowest

    @property
    def smallest(self) -> float:
        """The smallest number above zero: a subnormal."""
        return 2.0 ** (self.lowest - self.mantissa)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above it."""
        return 2.0**-self.mantissa


FP32 = Format("fp32", 8, 23)
TF32 = Format("tf32", 8, 10)
BF16 = Format("bf16", 8, 7)
FP16 = Format("fp16", 5, 10)
E5M2 = Format("e5m2", 5, 2)
E4M3 = Format("e4m3", 4, 3, top="nan")
E2M1 = Format("e2m1", 2, 1, top="finite")
FORMATS = {f.name: f for f in (FP32, TF32, BF16, FP16, E5M2, E4M3, E2M1)}


def format_of(name: str) -> Format:
    """The format of that name, or BadInput with the nearest known one."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return FORMATS[name]


def encode(value: float, format: Format, saturate: bool = False) -> int:
    """The code of the nearest number of `format`, ties to the even code.

    saturate: what is too large becomes the largest number; else infinity where there is one, else NaN.
    """
    sign = int(math.copysign(1, value) < 0) << (format.bits - 1)
    if math.isnan(value):
        return sign | not_a_number(format)
    code = above_all(format) if math.isinf(value) else magnitude(abs(value), format)
    if code > format.largest_code:
        code = format.largest_code if saturate or format.top == "finite" else above_all(format)
    return sign | code


def decode(code: int, format: Format) -> float:
    """The value of a code."""
    if not 0 <= code < 1 << format.bits:
        raise BadInput(f"code {code} is none of {format.name}: it has {format.bits} bits")
    sign = -1.0 if code >> (format.bits - 1) else 1.0
    code &= (1 << (format.bits - 1)) - 1
    if code > format.largest_code:
        return sign * math.inf if format.top == "ieee" and code == above_all(format) else math.nan
    exponent, fraction = code >> format.mantissa, code & ((1 << format.mantissa) - 1)
    whole = fraction | (1 << format.mantissa if exponent else 0)  # normal numbers have a 1 that is not stored
    return sign * math.ldexp(whole, max(exponent, 1) - 1 + format.lowest - format.mantissa)


def rounded(value: float, format: Format, saturate: bool = False) -> float:
    """What `value` becomes in `format`: rounded to the nearest number, ties to the even code."""
    return decode(encode(value, format, saturate), format)


def magnitude(value: float, format: Format) -> int:
    """The code nearest to a value ≥ 0; beyond the largest code where it is too large."""
    if not value:
        return 0
    fraction, exponent = math.frexp(value)  # value = fraction · 2**exponent, 0.5 ≤ fraction < 1
    whole = int(fraction * 2**DOUBLE)
    place = max(exponent - 1, format.lowest)  # the power of two whose spacing holds here
    units = half_to_even(whole, place - format.mantissa - (exponent - DOUBLE))
    return ((place - format.lowest) << format.mantissa) + units  # a carry of the mantissa raises the exponent by itself


def half_to_even(whole: int, shift: int) -> int:
    """whole / 2**shift to the nearest whole number, ties to even."""
    if shift <= 0:
        return whole << -shift
    half = (1 << shift) >> 1
    quotient, rest = whole >> shift, whole & ((1 << shift) - 1)
    return quotient + (rest > half or (rest == half and quotient & 1))


def above_all(format: Format) -> int:
    """The code just above the largest number's: infinity in an `ieee` format, NaN in a `nan` format."""
    return format.largest_code + 1


def not_a_number(format: Format) -> int:
    if format.top == "finite":
        raise BadInput(f"{format.name} has no code for NaN: find where it was made before casting")
    return above_all(format) if format.top == "nan" else above_all(format) | 1 << (format.mantissa - 1)
