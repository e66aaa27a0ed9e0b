"""gpucourse build: write each lesson's two notebooks from its source; --check says which are out of step."""

import ast
import hashlib
import signal
import sys
import tempfile
from pathlib import Path

import click

from gpucourse.course.checkout import Checkout, here, write
from gpucourse.course.executing import execute
from gpucourse.course.lessons import Lesson, choose, lessons
from gpucourse.errors import BadInput, CourseError

DEADLINE = 300  # seconds a solved notebook may take; lessons are made for 60


class BuildFailed(CourseError):
    """A solved notebook that did not run, or whose outputs may not be kept."""


@click.command()
@click.argument("names", nargs=-1, metavar="[LESSON]...")
@click.option("--check", is_flag=True, help="Execute and write nothing; say what is out of step.")
def command(names: tuple[str, ...], check: bool) -> None:
    """Write the notebooks of every LESSON, or of all, from solutions/NN_slug.py."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a kernel ends with the command
    checkout = here()
    if check:
        problems, notes = out_of_step(checkout, names)
        for line in (*problems, *(f"note: {note}" for note in notes)):
            click.echo(line)
        click.echo(f"{len(choose(checkout, names))} lessons checked, {len(problems)} out of step")
        sys.exit(1 if problems else 0)
    failures = 0
    for lesson in choose(checkout, names):
        try:
            click.echo(f"{lesson.name}: {build(checkout, lesson)}")
        except BuildFailed as failure:
            failures += 1
            click.echo(f"{lesson.name}: {failure}", err=True)
    sys.exit(1 if failures else 0)


def build(checkout: Checkout, lesson: Lesson) -> str:
    """Write the learner's notebook, and the solved one where it is stale; says what was done."""
    from gpucourse.course import sources

    write(_learner(checkout, lesson), sources.text(sources.learner(lesson.source)))
    print_of = fingerprint(checkout, lesson)
    kept = _read(_solved(checkout, lesson))
    if kept is not None and kept.metadata.get("gpucourse") == print_of and _in_step(kept, lesson):
        return "up to date"
    notebook, seconds = executed(checkout, lesson)
    notebook.metadata["gpucourse"] = print_of
    write(_solved(checkout, lesson), sources.text(notebook))
    return f"executed in {seconds:.0f} s"


def executed(checkout: Checkout, lesson: Lesson):
    """The solved notebook with its outputs, and the seconds it took; BuildFailed where a cell fails or leaks."""
    from gpucourse.course import sources
    from gpucourse.course.outputs import refused

    notebook = sources.solved(lesson.source)
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "source.ipynb"), Path(scratch, "executed.ipynb")
        write(source, sources.text(notebook))
        outcome = execute(source, target, parameters={}, cwd=checkout.solutions, deadline=DEADLINE,
                          environment={"GPUCOURSE_RUN": scratch, "GPUCOURSE_STATE": scratch, "GPUCOURSE_STRICT": "1",
                                       "GPUCOURSE_SOLVED": "1", "GPUCOURSE_LESSON": lesson.name})
        if outcome.state != "done":
            raise BuildFailed(f"cell {outcome.cell}: {outcome.error}; the notebook built before is kept")
        ran = sources.read(target)
    for cell, result in zip(notebook.cells, ran.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = result.outputs, result.execution_count
    if lines := refused(notebook, checkout.root):
        raise BuildFailed("; ".join(lines))
    return notebook, outcome.seconds


def out_of_step(checkout: Checkout, names: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """(problems, notes): what a reader would find wrong, and solved outputs that a change elsewhere may have aged."""
    from gpucourse.course import sources
    from gpucourse.course.outputs import FOLDER_BYTES, refused

    problems, notes = [], []
    for lesson in choose(checkout, names):
        learner, solved = _learner(checkout, lesson), _solved(checkout, lesson)
        if not learner.is_file() or learner.read_text(encoding="utf-8") != sources.text(sources.learner(lesson.source)):
            problems.append(f"notebooks/{learner.name} is not what its source gives; run gpucourse build")
        kept = _read(solved)
        if kept is None or not _in_step(kept, lesson):
            problems.append(f"solutions/{solved.name} is not what its source gives; run gpucourse build")
            continue
        problems += [f"solutions/{solved.name}, {line}" for line in refused(kept, checkout.root)]
        before, now = kept.metadata.get("gpucourse", {}), fingerprint(checkout, lesson)
        aged = [part for part in ("package", "constraints") if before.get(part) != now[part]]
        if aged:
            notes.append(f"solutions/{solved.name} was executed with another {' and '.join(aged)}")
    known = {f"{lesson.name}.ipynb" for lesson in lessons(checkout)}
    for path in sorted((*checkout.notebooks.glob("[0-9][0-9]_*.ipynb"), *checkout.solutions.glob("*.ipynb"))):
        if path.name not in known:
            problems.append(f"{path.parent.name}/{path.name} has no source")
    size = sum(path.stat().st_size for path in checkout.solutions.glob("*.ipynb"))
    if size > FOLDER_BYTES:
        problems.append(f"solutions/ holds notebooks of {size:,} bytes; at most {FOLDER_BYTES:,}")
    return problems, notes


def fingerprint(checkout: Checkout, lesson: Lesson) -> dict[str, str]:
    """Hashes of what a solved notebook's outputs come from.

    package: gpucourse/ and data/, but the command line, which no lesson depends on, and other lessons' exercises.
    """
    package = checkout.root / "gpucourse"
    files = [path for path in package.rglob("*.py") if path.parent.name not in ("course", "bank")]
    files += bank_of(lesson.number, package / "exercises" / "bank")
    files += [path for path in checkout.data.rglob("*") if path.is_file()]
    return {"source": _hash([lesson.source]), "package": _hash(sorted(files)),
            "constraints": _hash([checkout.root / "constraints.txt"])}


def bank_of(number: str, bank: Path) -> list[Path]:
    """A lesson's file in the bank of exercises, and those of the bank that it uses."""
    found: list[Path] = []
    wanted = [bank / f"lesson_{number}.py"]
    while wanted:
        path = wanted.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpucourse.exercises.bank"):
                inside = node.module.removeprefix("gpucourse.exercises.bank").lstrip(".")
                wanted += [bank / f"{name}.py" for name in ([inside] if inside else [a.name for a in node.names])]
    return found


def _hash(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
    return total.hexdigest()[:16]


def _in_step(kept, lesson: Lesson) -> bool:
    """Whether a solved notebook has the source's cells, byte for byte, and each code cell has run."""
    from gpucourse.course import sources

    same = sources.text(sources.without_outputs(kept)) == sources.text(sources.solved(lesson.source))
    return same and all(cell.execution_count for cell in kept.cells if cell.cell_type == "code")


def _read(path: Path):
    """The notebook at `path`; None where there is none or it cannot be read."""
    from gpucourse.course import sources

    try:
        return sources.read(path)
    except (OSError, BadInput):
        return None


def _learner(checkout: Checkout, lesson: Lesson) -> Path:
    return checkout.notebooks / f"{lesson.name}.ipynb"


def _solved(checkout: Checkout, lesson: Lesson) -> Path:
    return checkout.solutions / f"{lesson.name}.ipynb"
