"""What a check found. A check only makes these; view.py puts them into words."""

from dataclasses import dataclass

from gpucourse.errors import CourseError

STATES = ("right", "wrong", "error", "not attempted", "skipped")


@dataclass(frozen=True)
class Mark:
    """One part of an answer: what was looked at, whether it holds, what was seen, and what it may mean."""

    what: str
    ok: bool
    seen: str = ""
    note: str = ""


@dataclass(frozen=True)
class Result:
    """The state of one check. `says` continues the line of the state; `marks` has the parts where there are several."""

    id: str
    state: str
    says: str = ""
    note: str = ""
    marks: tuple[Mark, ...] = ()
    hints: int = 0
    hints_used: int = 0

    @property
    def parts(self) -> tuple[int, int]:
        """(right, all)."""
        if not self.marks:
            return (int(self.state == "right"), 1)
        return (sum(mark.ok for mark in self.marks), len(self.marks))


class Wrong(Exception):
    """Raised in a code exercise's run: what is wrong, and a line that helps. It ends the check as "wrong"."""

    def __init__(self, says: str, note: str = ""):
        super().__init__(says)
        self.says = says
        self.note = note


class Unusable(Exception):
    """An answer of the wrong type or shape: one line that says what was given and what to give."""


class CheckFailed(CourseError):
    """Raised under GPUCOURSE_STRICT=1 by an answer that is not right; the message begins with the exercise."""
