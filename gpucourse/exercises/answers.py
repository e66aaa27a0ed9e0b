"""What the learner gave, read as what the exercise asks for: or one line that says what to give."""

import dis
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpucourse.exercises.expect import a_kind, short
from gpucourse.exercises.results import Unusable

# What Python makes of a function whose body is `...`: load a constant, return it.
STUB_INSTRUCTIONS = {"LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}
BOOKKEEPING = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "MAKE_CELL"}


def blank(answer: Any) -> bool:
    """True for `...`, for a dict of nothing else, for a function whose body is `...` and a class of such methods."""
    if isinstance(answer, Mapping):
        return len(answer) > 0 and all(value is ... for value in answer.values())
    return answer is ... or is_stub(answer)


def is_stub(function: Any) -> bool:
    if inspect.isclass(function):  # its __init__ may show how values are kept
        methods = [m for name, m in vars(function).items() if inspect.isfunction(m) and name != "__init__"]
        return bool(methods) and all(map(is_stub, methods))
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None:
        return False
    body = [step for step in dis.get_instructions(code) if step.opname not in BOOKKEEPING]
    return all(step.opname in STUB_INSTRUCTIONS and step.argval in (None, ...) for step in body)


def number_of(answer: Any, unit: str, what: str = "the answer") -> float:
    """`answer` as a float: a Python number, or a NumPy or torch scalar. Raises Unusable for everything else."""
    give = f"give a number in {unit}" if unit else "give a number"
    if isinstance(answer, str):
        raise Unusable(f"{what} is the text {short(answer)}: {give}, without quotes and without the unit")
    shape = tuple(getattr(answer, "shape", ()))
    if math.prod(shape) != 1:
        raise Unusable(f"{what} has shape {shape}: {give}")
    value = answer
    if hasattr(answer, "item"):
        try:
            value = answer.item()
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            raise Unusable(f"{what} is {a_kind(answer)} without a value: {give}") from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Unusable(f"{what} is {described(value)}: {give}")
    if not math.isfinite(value):
        raise Unusable(f"{what} is {float(value)}: {give}")
    return float(value)


def key_of(answer: Any, options: Iterable[str], what: str = "the answer") -> str:
    """`answer` as one of the options' keys, whatever its case. Raises Unusable."""
    keys = list(options)
    found = [key for key in keys if isinstance(answer, str) and key.casefold() == answer.strip().casefold()]
    if not found:
        raise Unusable(f"{what} is {short(answer)}: give one of {quoted(keys)}")
    return found[0]


def named_values(answer: Any, names: Iterable[str], what: str = "the answer") -> dict[str, Any]:
    """`answer` as a dict with exactly these names. Raises Unusable."""
    names = list(names)
    allowed = quoted(names)
    if not isinstance(answer, Mapping):
        raise Unusable(f"{what} is {described(answer)}: give a dict with {allowed}")
    strange = [name for name in answer if name not in names]
    missing = [name for name in names if name not in answer]
    if strange or missing:
        fault = f"has {short(strange[0])}" if strange else f"lacks {quoted(missing[:1])}"
        raise Unusable(f"{what} {fault}: give a dict with {allowed}")
    return dict(answer)


def described(answer: Any) -> str:
    return "None" if answer is None else f"{short(answer)}, {a_kind(answer)}"


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def function_of(answer: Any) -> Callable:
    """`answer` when it can be called. Raises Unusable."""
    if not callable(answer):
        raise Unusable(f"the answer is {described(answer)}: give the function itself, without calling it")
    return answer
