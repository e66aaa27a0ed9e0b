"""Execute a notebook in a process of its own, with a deadline, and say how it ended."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpucourse.settings import child_environment

STATES = ("done", "failed", "died", "late", "stopped")
DONE, FAILED, DIED = 0, 1, 3  # how kernel_process exits
_POLL = 0.3  # seconds between two looks at the process and at the notebook it writes


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended.

    state: done; failed (a cell raised); died (the kernel was killed); late (over its deadline); stopped (by the user).
    cell: the execution count of the cell that did not end, 0 for none. exercise: that cell's exercise, if it has one.
    """

    state: str
    seconds: float
    error: str = ""
    cell: int = 0
    exercise: str = ""


def execute(source: Path, target: Path, *, parameters: dict, cwd: Path, environment: dict[str, str], deadline: float,
            stop: threading.Event | None = None, reached: Callable[[int], None] = lambda cells: None) -> Outcome:
    """Run the notebook `source`, leaving the executed one in `target` however it ends.

    deadline: seconds after which the process and all that it started are killed; at once when `stop` is set.
    reached: told the number of cells begun so far, whenever it has risen.
    """
    job = {"source": str(source), "target": str(target), "parameters": parameters, "cwd": str(cwd)}
    log = target.with_suffix(".log")
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen([sys.executable, "-m", "gpucourse.course.kernel_process", json.dumps(job)],
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   env=child_environment(**environment), start_new_session=True)
        try:
            cut = _wait(process, began + deadline, target, stop or threading.Event(), reached)
        finally:
            kill(process)
    seconds = time.monotonic() - began
    outcome = _outcome(process.returncode, cut, seconds, target, log)
    if outcome.state == "done":
        log.unlink()
    return outcome


def _wait(process: subprocess.Popen, end: float, target: Path, stop: threading.Event,
          reached: Callable[[int], None]) -> str:
    """Wait for the process to end by itself; otherwise why it has to be killed: late or stopped."""
    begun, saved = 0, 0.0
    while process.poll() is None:
        if time.monotonic() > end:
            return "late"
        if stop.wait(_POLL):
            return "stopped"
        modified = target.stat().st_mtime if target.exists() else 0.0
        if modified == saved:
            continue  # parsing the notebook takes time from the lesson
        saved = modified
        now = sum(1 for cell in cells(target) if _record(cell).get("start_time"))
        if now > begun:
            begun = now
            reached(begun)
    return ""


def kill(process: subprocess.Popen) -> None:
    """End a process and everything it started: its kernel lives in a session of its own."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    for member in (*family, process):
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def cells(notebook: Path) -> list[dict]:
    """The notebook's cells; none while it is absent or being written."""
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return []


def _record(cell: dict) -> dict:
    return cell.get("metadata", {}).get("papermill", {})


def _outcome(code: int, cut: str, seconds: float, target: Path, log: Path) -> Outcome:
    if code == DONE and not cut:
        return Outcome("done", seconds)
    begun = [cell for cell in cells(target) if cell["cell_type"] == "code" and _record(cell).get("start_time")]
    at = len(begun)
    exercise = begun[-1]["metadata"].get("exercise", "") if begun else ""
    if cut:
        return Outcome(cut, seconds, f"killed after {seconds:.0f} s in cell {at}", at, exercise)
    if code == DIED:
        return Outcome("died", seconds, f"the kernel died in cell {at}", at, exercise)
    raised = [output for cell in begun for output in cell["outputs"] if output["output_type"] == "error"]
    if raised:
        error = f"{raised[-1]['ename']}: {raised[-1]['evalue']}".splitlines()[0]
        return Outcome("failed", seconds, error, at, exercise)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return Outcome("failed", seconds, last[0] if last else f"ended with exit code {code}", at, exercise)
