"""The building blocks of code checks: what they accept, and what they say when they do not."""

import numpy
import pytest
import torch

from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


@pytest.mark.parametrize("got, expected", [
    (torch.full((2, 3), 1.5), numpy.full((2, 3), 1.5)), ([1.0, 2.0], torch.tensor([1.0, 2.0])),
    (torch.ones(2, dtype=torch.bfloat16, requires_grad=True), [1.0, 1.0]), (3, 3.0), (float("inf"), float("inf")),
    (numpy.zeros((0, 4)), torch.zeros(0, 4))])
def test_close_whatever_the_library(got, expected):
    mark = expect_close("values", got, expected, atol=0)
    assert mark.ok and mark.seen == "no difference"


def test_close_gives_the_largest_difference():
    got = torch.zeros(2, 3, dtype=torch.float64)
    got[1, 2] = 1e-7
    assert expect_close("values", got, torch.zeros(2, 3), atol=1e-6).seen == "largest difference 1.0e-07"
    far = expect_close("values", got, torch.zeros(2, 3), atol=1e-9, note="Why?")
    assert not far.ok and far.note == "Why?"
    assert far.seen == "largest difference 1e-07 at [1, 2], at most 1e-09 allowed"


@pytest.mark.parametrize("got, said", [
    (None, "expected a tensor of shape (2, 3), got None: the function returned nothing"),
    ("ones", "expected a tensor of shape (2, 3), got a str"),
    ({"a": 1}, "expected a tensor of shape (2, 3), got a dict"),
    (torch.ones(3, 2), "expected shape (2, 3), got (3, 2)"),
    (torch.tensor([[1, 1, float("nan")], [1, 1, 1]]), "1 of 6 values are not finite at [0, 2]"),
    (torch.full((2, 3), float("inf")), "6 of 6 values are not finite"),
    (torch.ones(2, 3, device="meta"), "got a tensor of shape (2, 3)"),
    ([[1, 2], [3]], "got a list"),
])
def test_not_close(got, said):
    mark = expect_close("values", got, torch.ones(2, 3), atol=1.0)
    assert not mark.ok and said in mark.seen


def test_equal():
    assert expect_equal("buckets", [2, 3], [2, 3]).ok and expect_equal("count", numpy.int64(3), 3).ok
    assert expect_equal("buckets", [3, 2], [2, 3]).seen == "got [3, 2]"
    assert expect_equal("buckets", None, [2, 3]).seen == "expected a list, got None: the function returned nothing"
    assert not expect_equal("buckets", torch.ones(2), [1, 1]).ok


def test_at_most():
    assert expect_at_most("peak", 4096, 4096, "bytes").ok
    mark = expect_at_most("communication", 48, 6, "all-reduces", reason="for 4 buckets", note="One a parameter.")
    assert (mark.ok, mark.seen) == (False, "48 all-reduces, at most 6 allowed for 4 buckets")
    assert not expect_at_most("peak", float("nan"), 1).ok
