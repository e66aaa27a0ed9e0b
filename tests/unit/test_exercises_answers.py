"""What a check says of answers that it cannot use, and which answers count as not attempted."""

import functools

import numpy
import pytest
import torch
from exercise_fixtures import examples  # noqa: F401

from gpucourse.exercises.answers import blank
from gpucourse.exercises.checking import examine
from gpucourse.exercises.view import result_lines

pytestmark = pytest.mark.usefixtures("examples")


def stub(x, y=2):
    ...


def stub_with_docstring(x):
    """Return twice x."""
    ...


def stub_with_return(x):
    return ...


def written(x):
    return 2 * x


def zero(x):
    return 0


class StubClass:
    def __init__(self, scale):
        self.scale = scale
        ...

    def step(self):
        """Take a step."""
        ...


class HalfWritten(StubClass):
    def step(self):
        ...

    def grow(self):
        return 2 * self.scale


@pytest.mark.parametrize("answer", [..., {"a": ..., "b": ...}, stub, stub_with_docstring, stub_with_return, StubClass,
                                    functools.wraps(stub)(lambda *_: written(2))])
def test_a_stub_is_not_attempted(answer):
    assert blank(answer)


@pytest.mark.parametrize("answer", [None, 0, "", {}, {"a": ..., "b": 1}, written, zero, len, numpy.zeros(3), int,
                                    HalfWritten, functools.partial(written, 2)])
def test_anything_else_is_an_attempt(answer):
    assert not blank(answer)


def test_the_stub_of_each_kind_is_not_attempted():
    answers = {"98.1": ..., "98.3": ..., "98.4": {"weights": ..., "gradients": ..., "peak at": ...}, "98.5": stub}
    assert {id: examine(id, answer).state for id, answer in answers.items()} == dict.fromkeys(answers, "not attempted")


@pytest.mark.parametrize("answer", [16, 16.0, numpy.float32(16), numpy.int64(16), numpy.array([16]),
                                    torch.tensor(16), torch.tensor([16.0], dtype=torch.bfloat16)])
def test_scalars_of_every_library_are_numbers(answer):
    assert examine("98.1", answer).state == "right"


@pytest.mark.parametrize("answer, said", [
    ("5 GiB", "the text '5 GiB': give a number in bytes a parameter, without quotes and without the unit"),
    (None, "is None: give a number in bytes a parameter"),
    (float("nan"), "is nan: give a number"),
    (float("-inf"), "is -inf: give a number"),
    (True, "is True, a bool: give a number"),
    (numpy.True_, "is True, a bool: give a number"),
    ([16], "is [16], a list: give a number"),
    (16 + 0j, "is (16+0j), a complex: give a number"),
    (numpy.ones((2, 3)), "has shape (2, 3): give a number"),
    (torch.ones(0), "has shape (0,): give a number"),
    (torch.empty(1, device="meta"), "a tensor of shape (1,) without a value: give a number"),
    (written, "a function: give a number"),
])
def test_an_answer_that_is_no_number(answer, said):
    result = examine("98.1", answer)
    assert result.state == "error"
    assert said in result.says
    assert "\n" not in str(result_lines(result))


@pytest.mark.parametrize("answer", ["z", None, 2, ["b"], numpy.ones(2)])
def test_an_answer_that_is_no_option(answer):
    result = examine("98.3", answer)
    assert result.state == "error"
    assert 'give one of "a", "b", "c"' in result.says


def test_an_option_is_found_whatever_its_case():
    assert examine("98.3", " B ").state == "right"


@pytest.mark.parametrize("answer, said", [
    (3, "is 3, an int: give a dict"),
    (None, "is None: give a dict"),
    ({"weights": 2, "gradients": 1}, 'lacks "peak at"'),
    ({"weights": 2, "gradients": 1, "peak at": "step", "more": 1}, "has 'more'"),
    ({"weights": 2, "gradients": "1", "peak at": "step"}, "part 'gradients' is the text '1'"),
    ({"weights": float("nan"), "gradients": 1, "peak at": "step"}, "part 'weights' is nan"),
    ({"weights": 2, "gradients": 1, "peak at": "never"}, "part 'peak at' is 'never'"),
])
def test_a_dict_of_parts_that_cannot_be_read(answer, said):
    result = examine("98.4", answer)
    assert result.state == "error"
    assert said in result.says


@pytest.mark.parametrize("answer", [3, None, "f"])
def test_an_answer_that_is_no_function(answer):
    assert "give the function itself" in examine("98.5", answer).says
