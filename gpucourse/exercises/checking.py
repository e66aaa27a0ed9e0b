"""check(id, answer): looks at an answer, says what it found, and keeps it. Nothing is raised to the learner unless
GPUCOURSE_STRICT=1."""

import inspect
import linecache
import sys
import traceback
from typing import Any

from gpucourse.errors import BadInput
from gpucourse.exercises import banks, progress
from gpucourse.exercises.answers import blank
from gpucourse.exercises.judging import judge
from gpucourse.exercises.kinds import Code, Exercise
from gpucourse.exercises.results import CheckFailed, Mark, Result, Unusable
from gpucourse.exercises.view import result_lines, show
from gpucourse.settings import settings


def check(id: str, answer: Any = ..., *, given: Any = None) -> None:
    """Check the answer to an exercise and say what was found.

    given: what the lesson measured, where the right answer depends on it.
    Raises CheckFailed only under GPUCOURSE_STRICT=1: for an answer that is wrong or cannot be read, and in a solved
    notebook for one that is missing.
    """
    result = examine(id, answer, given)
    show(result_lines(result))
    now = settings()
    failing = ("wrong", "error", "not attempted") if now.solved else ("wrong", "error")
    if now.strict and result.state in failing:
        raise CheckFailed(f"exercise {result_lines(result)}")


def examine(id: str, answer: Any = ..., given: Any = None) -> Result:
    """The result of a check, which progress keeps. Raises nothing."""
    try:
        exercise = banks.exercise(id)
    except BadInput as error:
        return Result(str(id), "error", str(error))
    except Exception as error:
        return broken_check(str(id), error)
    used = progress.hints_used(id)
    result = state_of(exercise, answer, given, used)
    if result.state != "not attempted" or not progress.attempted(id):  # a notebook run anew undoes no answer
        progress.add("check", id, state=result.state, parts=result.parts, hints=used)
    return result


def state_of(exercise: Exercise, answer: Any, given: Any, used: int) -> Result:
    id = exercise.id
    here = gpus() if exercise.needs_gpus else 0
    if here < exercise.needs_gpus:
        plural = "" if exercise.needs_gpus == 1 else "s"
        lack = f"needs {exercise.needs_gpus} GPU{plural} (this machine has {here})"
        return Result(id, "skipped", f"{lack}. {exercise.instead}" if exercise.instead else lack)
    if blank(answer):
        return Result(id, "not attempted", hints=len(exercise.hints), hints_used=used)
    try:
        marks = judge(exercise, answer, given)
    except Unusable as error:
        return Result(id, "error", str(error))
    except Exception as error:
        if isinstance(exercise, Code) and is_theirs(answer, error):
            return Result(id, "error", one_line(error), line_of(answer, error))
        return broken_check(id, error)
    return Result(id, "right" if all(mark.ok for mark in marks) else "wrong", *single(marks), marks=marks,
                  hints=len(exercise.hints), hints_used=used)


def single(marks: tuple[Mark, ...]) -> tuple[str, str]:
    """What an answer of one part says, and its note; several parts have lines of their own."""
    if len(marks) != 1:
        return "", ""
    mark = marks[0]
    return f"{mark.what}: {mark.seen}" if mark.seen else mark.what, mark.note


def broken_check(id: str, error: Exception) -> Result:
    return Result(id, "error", f"this is an error in the check itself, not in your answer: {one_line(error)}",
                  "Please report it with this line. The lesson goes on.")


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def is_theirs(function: Any, error: Exception) -> bool:
    """True when the learner's code raised the exception, or could not be called with the exercise's arguments."""
    called = isinstance(error, TypeError) and str(error).startswith(getattr(function, "__qualname__", "?"))
    return called or bool(line_of(function, error))


def line_of(function: Any, error: Exception) -> str:
    """The last line of the learner's own code that the exception passed through; "" for none."""
    home = namespace_of(function)
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_globals is home]
    if not frames:
        return ""
    frame, line = frames[-1]
    source = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return f"in {frame.f_code.co_name}(), line {line}: {source}".removesuffix(": ")


def namespace_of(function: Any) -> dict | None:
    """The global names of the module or notebook in which a function or class was written."""
    if isinstance(function, type):
        module = sys.modules.get(function.__module__)
        return None if module is None else vars(module)
    return getattr(inspect.unwrap(function), "__globals__", None)


def gpus() -> int:
    from gpucourse import measure  # brings torch: only where an exercise needs a GPU

    return sum(device.torch.startswith("cuda") for device in measure.devices())
