"""The picture of ranges, and its line of text."""

from gpucourse.live.ranges import ranges
from gpucourse.predict.formats import BF16, E4M3, FP16, FP32


def test_the_text_says_what_each_format_loses():
    shares = {-30: 0.25, -26: 0.25, -25: 0.25, -3: 0.25}  # half of fp16's smallest number is 2**-25
    text = str(ranges("a finding", [FP32, BF16, FP16], shares, "measured on cpu (2 cores)"))
    assert "fp32 0%, bf16 0%, fp16 50%" in text and "measured on cpu (2 cores)" in text


def test_it_is_a_small_picture():
    chart = ranges("a finding", [FP32, BF16, FP16, E4M3], {p: 0.05 for p in range(-30, -10)}, "measured on a device")
    assert chart._repr_png_()[:4] == b"\x89PNG" and len(chart._repr_png_()) <= 60 * 1024
