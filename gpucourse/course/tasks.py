"""What a batch is to run: each lesson's notebook, and the parameters that its parameters cell takes."""

import ast
import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpucourse.course.checkout import Checkout, write
from gpucourse.course.lessons import Lesson
from gpucourse.errors import BadInput, Missing, unknown
from gpucourse.settings import settings


@dataclass(frozen=True)
class Task:
    """One lesson to run. notebook: its text. fingerprint: of the notebook, the parameters and strictness."""

    lesson: Lesson
    notebook: str
    cells: int
    parameters: dict
    fingerprint: str


def values(given: tuple[tuple[str, str], ...]) -> dict:
    """Parameters as typed on a command line: Python literals, or else text."""
    return {name: _literal(text) for name, text in given}


def _literal(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def tasks(checkout: Checkout, lessons: tuple[Lesson, ...], solved: bool, given: dict) -> list[Task]:
    """What is to be run: each lesson with those of the given parameters that its parameters cell has."""
    from gpucourse.course import sources

    texts = {lesson: sources.text(_notebook(checkout, lesson, solved)) for lesson in lessons}
    known = {lesson: parameters(text) for lesson, text in texts.items()}
    if lessons:
        _refuse_unknown(given, {name: default for defaults in known.values() for name, default in defaults.items()})
    ready = []
    for lesson, text in texts.items():
        taken = {name: value for name, value in given.items() if name in known[lesson]}
        key = json.dumps([text, taken, solved, settings().strict], sort_keys=True)
        cells = len(json.loads(text)["cells"]) + bool(taken)  # papermill adds one that sets the parameters
        ready.append(Task(lesson, text, cells, taken, hashlib.sha256(key.encode()).hexdigest()[:16]))
    return ready


def _refuse_unknown(given: dict, defaults: dict) -> None:
    """BadInput for a name that no lesson has, or a value of another type than its default."""
    for name, value in given.items():
        if name not in defaults:
            raise unknown("parameter", name, defaults)
        if type(value) is not type(defaults[name]):
            raise BadInput(f"-p {name} is {value!r}; it must be of type {type(defaults[name]).__name__}, "
                           f"as {defaults[name]!r} is")


def _notebook(checkout: Checkout, lesson: Lesson, solved: bool):
    from gpucourse.course import sources

    if solved:
        return sources.solved(lesson.source)
    path = checkout.notebooks / f"{lesson.name}.ipynb"
    try:
        return sources.without_outputs(sources.read(path))
    except FileNotFoundError:
        raise Missing(f"notebooks/{path.name} is not there; write it: gpucourse build") from None


def parameters(notebook: str) -> dict:
    """Names and defaults of the notebook's parameters cell."""
    import papermill

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "notebook.ipynb")
        write(path, notebook)
        return {name: _literal(found["default"]) for name, found in papermill.inspect_notebook(path).items()}
