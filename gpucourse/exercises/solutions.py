"""solution(id): the answer as it stands in the lesson's source, after one attempt. No answer is written twice."""

from dataclasses import dataclass

from gpucourse.errors import BadInput, Missing
from gpucourse.exercises import banks, progress
from gpucourse.exercises.view import Lines, show
from gpucourse.settings import SOLUTIONS


@dataclass(frozen=True)
class Source:
    """Python code, set as code in a notebook."""

    id: str
    code: str

    def __str__(self) -> str:
        return f"{self.id}  a solution:\n\n{self.code}"

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"**{self.id}** a solution:\n\n```python\n{self.code}\n```"


def solution(id: str) -> None:
    """Show the solution of an exercise that was attempted: one check with an answer."""
    try:
        banks.exercise(id)
        if not progress.attempted(id):
            show(Lines(id, f'the solution opens after one attempt: check("{id}", your answer).'))
            return
        code = source_of(id)
    except (BadInput, Missing) as error:
        show(Lines(str(id), f"no solution: {error}"))
        return
    progress.add("solution", id)
    show(Source(id, code))


def source_of(id: str) -> str:
    """The code of this exercise's cells tagged `solution`. Raises Missing where the file or the cell is not there."""
    cells = [cell for cell in lesson_cells(id.partition(".")[0]) if is_tagged(cell, "solution", id)]
    if not cells:
        raise Missing(f"the lesson's source in {SOLUTIONS.name}/ has no solution of {id}")
    return "\n\n".join(cell.source for cell in cells)


def lesson_cells(lesson: str) -> list:
    """The cells of solutions/NN_slug.py. Raises Missing."""
    import jupytext  # brings nbformat: only where a solution is asked for

    files = sorted(SOLUTIONS.glob(f"{lesson}_*.py"))
    if not files:
        raise Missing(f"{SOLUTIONS.name}/{lesson}_….py is not there: the course runs from a checkout of its repository")
    return jupytext.read(files[0], fmt="py:percent").cells


def is_tagged(cell, tag: str, id: str) -> bool:
    return tag in cell.metadata.get("tags", ()) and cell.metadata.get("exercise") == id
