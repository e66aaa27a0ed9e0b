"""gpucourse lab: JupyterLab in notebooks/, reachable from this machine alone."""

import subprocess
import sys

import click

from gpucourse.course.checkout import here


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[JUPYTERLAB OPTION]...")
def command(arguments: tuple[str, ...]) -> None:
    """Start JupyterLab in notebooks/. Options of JupyterLab, such as --no-browser, are passed on."""
    sys.exit(subprocess.call([sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1",
                              f"--ServerApp.root_dir={here().notebooks}", *arguments]))
