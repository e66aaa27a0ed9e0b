"""Building blocks for the `run` of a code exercise: each looks at one thing and returns a Mark.

def run(function):
    x = torch.rand(4, 8)                     # random, so that no wrong answer passes by symmetry
    yield expect_close("values", function(x), x.softmax(-1), atol=1e-6)
    yield expect_at_most("peak", peak_of(function, x), 2 * x.nbytes, "bytes", reason="for one copy")

A message gives what was got and the difference, never the expected value.
"""

from typing import Any

from gpucourse.evidence import number
from gpucourse.exercises.results import Mark


def expect_close(what: str, got: Any, expected: Any, atol: float, note: str = "") -> Mark:
    """Numbers, lists, arrays or tensors, equal in shape and, element by element, to within `atol`."""
    import numpy  # costs 0.1 s, which an arithmetic check does not owe

    wanted = array(expected)
    try:
        seen = array(got)
    except (TypeError, ValueError, RuntimeError):
        return Mark(what, False, f"expected {a_kind(expected)}, got {a_kind(got)}", note)
    if seen.shape != wanted.shape:
        return Mark(what, False, f"expected shape {wanted.shape}, got {seen.shape}", note)
    lost = ~numpy.isfinite(seen) & numpy.isfinite(wanted)
    if lost.any():
        return Mark(what, False, f"{lost.sum()} of {lost.size} values are not finite{where(lost)}", note)
    with numpy.errstate(invalid="ignore"):  # inf - inf, where infinity is what is expected
        difference = numpy.where(seen == wanted, 0.0, abs(seen - wanted))
    largest = difference.max(initial=0.0)
    if largest <= atol:
        return Mark(what, True, f"largest difference {largest:.1e}" if largest else "no difference")
    return Mark(what, False, f"largest difference {largest:.2g}{where(difference)}, at most {atol:g} allowed", note)


def expect_equal(what: str, got: Any, expected: Any, note: str = "") -> Mark:
    """Whole numbers, texts, lists or dicts that must be the same; for tensors use expect_close(…, atol=0)."""
    try:
        same = bool(got == expected)
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor says so when asked for one truth
        same = False
    if same:
        return Mark(what, True)
    if type(got) is not type(expected):
        return Mark(what, False, f"expected {a_kind(expected)}, got {a_kind(got)}", note)
    return Mark(what, False, f"got {short(got)}", note)


def expect_at_most(what: str, got: float, limit: float, unit: str = "", reason: str = "", note: str = "") -> Mark:
    """A cost: bytes, collectives, a ratio of times. `reason` says what the limit is for."""
    seen = " ".join(filter(None, [number(got), unit])) + f", at most {number(limit)} allowed"
    seen = f"{seen} {reason}" if reason else seen
    return Mark(what, True, seen) if got <= limit else Mark(what, False, seen, note)


def array(values: Any):
    """Numbers, lists, arrays or tensors on any device as an array of float64."""
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().double().cpu()
    if values is None or isinstance(values, str):
        raise TypeError
    return numpy.asarray(values, dtype=numpy.float64)


def where(values) -> str:
    """The index of the largest value, as " at [2, 5]"; nothing for a single number."""
    import numpy

    index = numpy.unravel_index(values.argmax(), values.shape)
    return f" at [{', '.join(map(str, map(int, index)))}]" if index else ""


def a_kind(value: Any) -> str:
    """What a value is, in words: "a tensor of shape (4, 8)", "a str", "None: the function returned nothing"."""
    if value is None:
        return "None: the function returned nothing"
    shape = getattr(value, "shape", None)
    kind = "a tensor" if hasattr(value, "detach") else f"{article(type(value).__name__)}"
    return f"{kind} of shape {tuple(shape)}" if shape is not None else kind


def article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def short(value: Any, longest: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[:longest - 1]}…"
