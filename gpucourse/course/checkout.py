"""The folders of a checkout of the course, and writing into a folder so that nothing is ever half written."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpucourse import settings
from gpucourse.errors import Missing


@dataclass(frozen=True)
class Checkout:
    """Where the course's files lie: the sources, both kinds of notebook, the data and the batch runs."""

    root: Path

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def solutions(self) -> Path:
        return self.root / "solutions"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def runs(self) -> Path:
        return self.root / "runs"


def here() -> Checkout:
    """The checkout that this package was installed from, or Missing where it was installed without one."""
    checkout = Checkout(settings.ROOT)
    for folder in (checkout.data, checkout.solutions):
        if not folder.is_dir():
            raise Missing(f"{folder.name}/ is not beside the package; the course runs from a checkout: "
                          "clone it and install with pip install -e .")
    return checkout


def write(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; Missing where the folder refuses, and then the old file stands."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False,
                                         encoding="utf-8", newline="\n") as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            temporary.unlink(missing_ok=True)
        why = "a file is in the place of its folder" if isinstance(error, FileExistsError) else error.strerror
        raise Missing(f"cannot write {path}: {why}; free some space or name another folder") from error
