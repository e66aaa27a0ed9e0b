"""Figures that others published, from data/published/: each row names its source."""

import csv

from gpucourse.errors import unknown
from gpucourse.settings import DATA


def published(name: str) -> list[dict[str, str]]:
    """The rows of data/published/NAME.csv."""
    folder = DATA / "published"
    if not (folder / f"{name}.csv").is_file():
        raise unknown("published table", name, sorted(path.stem for path in folder.glob("*.csv")))
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))
