"""What a solved notebook's outputs may hold: few small pictures, and nothing that only this machine knows."""

import re
import socket
from base64 import b64decode
from pathlib import Path

from nbformat import NotebookNode

PICTURES = 4
PICTURE_BYTES = 60 * 1024
FOLDER_BYTES = 8 * 1024 * 1024

_LEAKS = {
    "a path": re.compile(r"(?<![\w.:/])/(?:home|root|tmp|var|opt|usr|mnt|srv|Users|private)/[\w.-]+|\b[A-Z]:\\\\?\w"),
    "an address in memory": re.compile(r"\bat 0x[0-9a-f]{6,}"),
    "a process id": re.compile(r"\bpid\b\W{0,3}\d+|\bprocess(?: id)? \d{3,}", re.IGNORECASE),
}


def refused(notebook: NotebookNode, root: Path) -> list[str]:
    """What must not be committed, one line each that names the cell; `root` is the checkout's own path."""
    secrets = {"the checkout's path": re.compile(re.escape(str(root))),
               "the host's name": re.compile(rf"\b{re.escape(socket.gethostname())}\b"), **_LEAKS}
    lines, pictures = [], 0
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        for output in cell.outputs:
            for kind, value in contents(output).items():
                if kind.startswith("image/"):
                    pictures += 1
                    size = len(value.encode()) if kind == "image/svg+xml" else len(b64decode(value))
                    if size > PICTURE_BYTES:
                        lines.append(f"cell {number}: a picture of {size:,} bytes; at most {PICTURE_BYTES:,}")
                    continue
                for what, pattern in secrets.items():
                    if found := pattern.search(value):
                        lines.append(f"cell {number}: its output holds {what} ({found[0]!r})")
    if pictures > PICTURES:
        lines.append(f"{pictures} pictures; at most {PICTURES}")
    return lines


def contents(output: NotebookNode) -> dict[str, str]:
    """An output's text by kind: streams and errors as text/plain."""
    if output.output_type == "stream":
        return {"text/plain": output.text}
    if output.output_type == "error":
        return {"text/plain": "\n".join(output.traceback)}
    return {kind: value if isinstance(value, str) else str(value) for kind, value in output.data.items()}
