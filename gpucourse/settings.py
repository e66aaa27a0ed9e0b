"""Everything that the package reads from its environment, in one place.

GPUCOURSE_STATE    folder of the learner's progress (default: the user's state directory)
GPUCOURSE_STRICT   1: a wrong check raises; in a solved notebook an unanswered one does too
GPUCOURSE_RUN      folder of a batch run: progress and evidence are kept there
GPUCOURSE_LESSON   the lesson that a batch run executes, e.g. 01_memory_anatomy
GPUCOURSE_SOLVED   1: the notebook being run is a solved one
"""

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
SOLUTIONS = ROOT / "solutions"


@dataclass(frozen=True)
class Settings:
    state: Path | None
    strict: bool
    run: Path | None
    lesson: str
    solved: bool
    interactive: bool  # a person watches: the kernel was started by Jupyter's server, not by a batch


def settings() -> Settings:
    """The environment as it is now."""
    env = os.environ
    run = Path(env["GPUCOURSE_RUN"]) if env.get("GPUCOURSE_RUN") else None
    return Settings(
        state=Path(env["GPUCOURSE_STATE"]) if env.get("GPUCOURSE_STATE") else None,
        strict=env.get("GPUCOURSE_STRICT", "") == "1",
        run=run,
        lesson=env.get("GPUCOURSE_LESSON", ""),
        solved=env.get("GPUCOURSE_SOLVED", "") == "1",
        interactive=run is None and any(env.get(name) for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_GPU")),
    )


def child_environment(**extra: str) -> dict[str, str]:
    """This process's environment with `extra` set: what a child process is started with."""
    return {**os.environ, **extra}


def adopt_environment(environment: dict[str, str]) -> None:
    """Make `environment` this process's own, in place of what it was started with."""
    os.environ.clear()
    os.environ.update(environment)
