"""gpucourse report: report.html of one run's folder, or of several machines' side by side."""

from pathlib import Path

import click

from gpucourse.course.checkout import write
from gpucourse.course.page import page


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file; report.html in DIR, or here for several.")
def command(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write one report of the runs in DIR."""
    target = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    write(target, page([folder.resolve() for folder in folders]))
    click.echo(target)
