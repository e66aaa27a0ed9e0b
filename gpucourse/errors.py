"""The package's own errors: one line each, that says what was given, what is allowed and what to do."""

import difflib
import math
from collections.abc import Iterable


class CourseError(Exception):
    """Any failure that the package explains itself."""


class BadInput(CourseError, ValueError):
    """A value that cannot be used; the message names it and what is allowed."""


class Missing(CourseError):
    """Something this machine lacks: a GPU, a tool, a folder."""


class BudgetExceeded(CourseError, MemoryError):
    """A memory budget refused an allocation."""


def unknown(what: str, given: object, allowed: Iterable[str]) -> BadInput:
    """The error for a name that is not in a list, with the nearest one that is."""
    allowed = list(allowed)
    given_lower = str(given).lower()
    longer = [name for name in allowed if given_lower and name.startswith(given_lower)]  # h100 is h100-sxm before v100
    near = longer or difflib.get_close_matches(given_lower, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return BadInput(f"{what} {given!r} is not known; {hint}allowed: {', '.join(allowed)}")


def positive_int(what: str, given: object) -> int:
    """`given` as an integer of at least 1, or BadInput naming `what`."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise BadInput(f"{what} is {given!r}; it must be a whole number of at least 1")
    return given


def positive(what: str, given: object) -> float:
    """`given` as a finite number above 0, or BadInput naming `what`."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise BadInput(f"{what} is {given!r}; it must be a number above 0")
    return given
