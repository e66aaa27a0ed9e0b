"""From a lesson's source to its two notebooks: pure functions from text to notebooks, the same bytes each time."""

import hashlib
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode, ValidationError

from gpucourse.errors import BadInput

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def solved(source: Path) -> NotebookNode:
    """Every cell of the source, without outputs. The ids depend on the lesson and the cells' text alone."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        text = f"{source.stem}\n{cell.cell_type}\n{cell.source}"
        seen[text] = seen.get(text, 0) + 1
        cell.id = hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()[:12]
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def read(path: Path) -> NotebookNode:
    """The notebook in a file. BadInput where it is not one; FileNotFoundError where there is none."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, AttributeError, KeyError, ValidationError):
        raise BadInput(f"{path.parent.name}/{path.name} is not a notebook; write it again: gpucourse build") from None
    return notebook


def learner(source: Path) -> NotebookNode:
    """What the learner opens: the source without its solution cells."""
    notebook = solved(source)
    notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    return notebook


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """The same cells as they were before they ran: what has to agree with the source."""
    bare = nbformat.from_dict({**notebook, "metadata": METADATA})
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return bare


def text(notebook: NotebookNode) -> str:
    """The notebook as it is written to a file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"
