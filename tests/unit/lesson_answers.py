"""The answers that a lesson's source gives, without running the lesson.

An exercise's stub or solution cell is executed after the cells that it may rely on: the parameters, the cells that
only import, and those tagged `setup`. What the lesson would have measured, the name after `given=` in the check, is
the exercise's `example`. The check cell then runs with a check() that catches the answer.
"""

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
from exercise_fixtures import EXAMPLES

from gpucourse.exercises import banks
from gpucourse.exercises.kinds import Exercise
from gpucourse.settings import SOLUTIONS

KINDS = ("stub", "solution", "check")


@dataclass(frozen=True)
class Lesson:
    """A lesson's source and its bank. Lesson 98 is the example, which keeps these tests from testing nothing."""

    number: str
    folder: Path = SOLUTIONS

    @functools.cached_property
    def bank(self) -> ModuleType:
        if self.folder == SOLUTIONS:
            return banks.load(self.number)
        spec = importlib.util.spec_from_file_location("example_bank", self.folder / f"lesson_{self.number}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @functools.cached_property
    def cells(self) -> list:
        (source,) = self.folder.glob(f"{self.number}_*.py")
        return [cell for cell in jupytext.read(source, fmt="py:percent").cells if cell.cell_type == "code"]

    @functools.cached_property
    def setup(self) -> dict[str, Any]:
        names = {"__name__": f"lesson_{self.number}"}
        for cell in self.cells:
            if tags(cell) & {"parameters", "setup"} or only_imports(cell.source):
                exec(compile(cell.source, f"lesson {self.number}", "exec"), names)
        return names


def lessons() -> list[Lesson]:
    """Every lesson that has a bank or a source, and the example."""
    sources = {path.name.partition("_")[0] for path in SOLUTIONS.glob("[0-9][0-9]_*.py")}
    return [*map(Lesson, sorted(sources | set(banks.lessons()))), Lesson("98", EXAMPLES)]


def answer(lesson: Lesson, exercise: Exercise, kind: str) -> tuple[Any, Any]:
    """(answer, given) that reach check() when the stub or the solution cell is executed."""
    caught = []
    names = {**lesson.setup, "check": lambda id, answer=..., *, given=None: caught.append((id, answer, given))}
    check_cell = one_cell(lesson, exercise, "check")
    for name in given_names(check_cell.source):
        names[name] = exercise.example
    for cell in (one_cell(lesson, exercise, kind), check_cell):
        exec(compile(cell.source, f"{exercise.id} {kind}", "exec"), names)
    ((id, given_answer, given),) = caught
    assert id == exercise.id
    return given_answer, given


def one_cell(lesson: Lesson, exercise: Exercise, kind: str):
    found = [cell for cell in lesson.cells if kind in tags(cell) and cell.metadata.get("exercise") == exercise.id]
    assert len(found) == 1, f"{exercise.id} has {len(found)} cells tagged {kind}, not 1"
    return found[0]


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def only_imports(source: str) -> bool:
    body = ast.parse(source).body if not source.lstrip().startswith(("%", "!")) else []
    return bool(body) and all(isinstance(node, ast.Import | ast.ImportFrom) for node in body)


def given_names(source: str) -> list[str]:
    keywords = [word for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) for word in node.keywords]
    return [word.value.id for word in keywords if word.arg == "given" and isinstance(word.value, ast.Name)]
