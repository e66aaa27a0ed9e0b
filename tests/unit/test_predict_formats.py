"""Roundings by bits against torch's own casts, code by code and on random numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.errors import BadInput
from gpucourse.predict.blocks import (
    BLOCK_FORMATS,
    E2M1,
    E4M3,
    MXFP8,
    NVFP4,
    block_scale,
    block_scaled,
    scaled,
    whole_scale,
)
from gpucourse.predict.formats import BF16, E5M2, FORMATS, FP16, FP32, TF32, decode, encode, format_of, rounded

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2,
         "e4m3": torch.float8_e4m3fn}
each = pytest.mark.parametrize("name", TORCH)
singles = st.floats(width=32, allow_nan=False)


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def e2m1(x: torch.Tensor) -> torch.Tensor:
    """To the nearest of the sixteen numbers of e2m1, by spacing and torch.round."""
    spacing = torch.ldexp(torch.ones_like(x), x.abs().frexp().exponent.sub(1).clamp(min=0) - 1)
    return ((x / spacing).round() * spacing).clamp(-6, 6)


@each
def test_the_properties_are_torchs(name):
    ours, theirs = FORMATS[name], torch.finfo(TORCH[name])
    assert (ours.bits, ours.largest, ours.smallest_normal, ours.epsilon) == (
        theirs.bits, theirs.max, theirs.smallest_normal, theirs.eps)


@pytest.mark.parametrize("name", ["bf16", "fp16", "e5m2", "e4m3"])
def test_every_code_decodes_as_torch_reads_it(name):
    ours, dtype = FORMATS[name], TORCH[name]
    whole = torch.uint8 if ours.bits == 8 else torch.int16
    codes = torch.arange(1 << ours.bits, dtype=torch.int32).to(whole)
    values = codes.view(dtype).float().tolist()
    assert all(same(decode(code, ours), value) for code, value in enumerate(values))


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_a_code_comes_back_from_its_value(format):
    codes = range(0, 1 << format.bits, 1 if format.bits <= 16 else 9973)
    for code in codes:
        value = decode(code, format)
        if not math.isnan(value):
            assert encode(value, format) == code


@each
@given(value=singles)
def test_a_cast_is_torchs(name, value):
    saturate = name == "e4m3" and torch.isfinite(torch.tensor(1e9).to(torch.float8_e4m3fn).float()).item()
    assert same(rounded(value, FORMATS[name], saturate), torch.tensor(value).to(TORCH[name]).float().item())


@given(value=singles)
def test_tf32_keeps_ten_bits_of_the_mantissa(value):
    bits = torch.tensor(value).view(torch.int32)
    seen = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).item()
    assert same(rounded(value, TF32), seen)


def test_ties_go_to_the_even_code():
    assert [rounded(x, BF16) for x in (257, 259)] == [256, 260]
    assert [rounded(x, FP16) for x in (2049, 2051)] == [2048, 2052]
    assert [rounded(x, E2M1) for x in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5)] == [0, 1, 1, 2, 2, 4, 4]


def test_what_is_too_large_follows_the_format_and_the_policy():
    assert rounded(65519, FP16) == 65504 and rounded(65520, FP16) == math.inf
    assert rounded(65520, FP16, saturate=True) == 65504
    assert math.isnan(rounded(500, E4M3)) and rounded(-500, E4M3, saturate=True) == -448
    assert rounded(1e9, E5M2) == math.inf and rounded(1e9, E2M1) == 6 and rounded(-math.inf, E2M1) == -6


def test_what_is_too_small_becomes_zero_at_half_of_the_smallest():
    for format in FORMATS.values():
        assert rounded(format.smallest / 2, format) == 0
        assert rounded(format.smallest * 0.51, format) == format.smallest


def test_bad_input_is_said():
    with pytest.raises(BadInput, match="format 'bf61' is not known; did you mean bf16"):
        format_of("bf61")
    with pytest.raises(BadInput, match="code 300 is none of e4m3: it has 8 bits"):
        decode(300, E4M3)
    with pytest.raises(BadInput, match="e2m1 has no code for NaN"):
        rounded(math.nan, E2M1)
    with pytest.raises(BadInput, match="40 values for mxfp8: give a multiple of its block, 32"):
        block_scaled([1.0] * 40, MXFP8)


def drawn(seed: int, count: int = 1024) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator) * torch.randn(count, generator=generator).exp()
    x[32:64] = 0  # a block of zeros
    x[100] *= 300  # an outlier
    return x


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
def test_mx_is_what_torch_computes(name, seed):
    format, x = BLOCK_FORMATS[name], drawn(seed)
    blocks = x.view(-1, 32)
    highest = blocks.abs().amax(1, keepdim=True).frexp().exponent - (9 if name == "mxfp8" else 3)
    scale = torch.ldexp(torch.ones_like(highest, dtype=torch.float32), highest.clamp(-127, 127))
    parts = (blocks / scale).clamp(-format.element.largest, format.element.largest)
    parts = parts.to(torch.float8_e4m3fn).float() if name == "mxfp8" else e2m1(parts)
    assert block_scaled(x.tolist(), format) == (parts * scale).flatten().tolist()


@pytest.mark.parametrize("seed", range(4))
def test_nvfp4_is_what_torch_computes(seed):
    x = drawn(seed)
    blocks, whole = x.view(-1, 16), x.abs().max() / (448 * 6)
    scale = (blocks.abs().amax(1, keepdim=True) / 6 / whole).clamp(max=448).to(torch.float8_e4m3fn).float() * whole
    scale = torch.where(scale == 0, 1.0, scale)
    assert block_scaled(x.tolist(), NVFP4) == (e2m1(blocks / scale) * scale).flatten().tolist()


def test_bits_an_element_count_the_scale():
    assert {name: f.bits for name, f in BLOCK_FORMATS.items()} == {"mxfp8": 8.25, "mxfp4": 4.25, "nvfp4": 4.5}


def test_one_scale_takes_the_largest_to_the_largest():
    values = drawn(9).tolist()
    scale = whole_scale(values, E4M3)
    assert max(map(abs, scaled(values, E4M3, scale))) == pytest.approx(max(map(abs, values)), rel=1e-6)
    assert whole_scale([0.0, 0.0], E4M3) == 1 and block_scale(0.0, MXFP8, 1.0) == 1
    assert rounded(scale, FP32) == scale
