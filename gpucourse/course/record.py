"""What a batch run leaves in its folder: summary.json, and the evidence of its lessons."""

import json
from datetime import UTC, datetime
from pathlib import Path

from gpucourse.course import machine
from gpucourse.errors import BadInput
from gpucourse.settings import settings


def header(solved: bool) -> dict:
    """The part of a summary that holds for the whole run."""
    return {"started": datetime.now(UTC).isoformat(timespec="seconds"), "solved": solved,
            "strict": settings().strict, "versions": machine.versions(), "devices": machine.devices_from_outside()}


def waiting(task) -> dict:
    return {"lesson": task.lesson.name, "title": task.lesson.title, "state": "waiting", "seconds": 0.0, "error": "",
            "cell": 0, "exercise": "", "parameters": task.parameters, "fingerprint": task.fingerprint}


def entry(task, outcome) -> dict:
    """A lesson's line of the summary once it has ended."""
    return {**waiting(task), "state": outcome.state, "seconds": round(outcome.seconds, 1), "error": outcome.error,
            "cell": outcome.cell, "exercise": outcome.exercise}


def summary(header: dict, entries: dict[str, dict]) -> str:
    return json.dumps({**header, "lessons": list(entries.values())}, indent=1, ensure_ascii=False) + "\n"


def read(out: Path) -> dict:
    """A run's summary, or BadInput where the folder holds none."""
    try:
        found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    if not isinstance(found, dict) or "lessons" not in found:
        raise BadInput(f"{out} is not the folder of a run: it holds no readable summary.json")
    return found


def finished(out: Path, fingerprints: dict[str, str]) -> dict[str, dict]:
    """Lessons that `out` holds done with the same fingerprint: what --resume skips."""
    try:
        before = read(out)["lessons"]
    except BadInput:
        return {}
    return {line["lesson"]: line for line in before
            if line["state"] == "done" and fingerprints.get(line["lesson"]) == line["fingerprint"]
            and (out / f"{line['lesson']}.ipynb").is_file()}


def forget(out: Path, lesson: str) -> None:
    """Drop what an earlier try of this lesson left, so that nothing of it is taken for this one's."""
    for name in (f"{lesson}.ipynb", f"{lesson}.log", f"evidence.{lesson}.jsonl"):
        (out / name).unlink(missing_ok=True)


def evidence(out: Path, lesson: str) -> list[dict]:
    """The figures that a lesson recorded, in order; a line that a killed kernel left torn is skipped."""
    path = out / f"evidence.{lesson}.jsonl"
    figures = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            figures.append(json.loads(line))
        except ValueError:
            continue
    return figures


def merged(out: Path, lessons: list[str]) -> str:
    """All lessons' figures, one JSON line each."""
    return "".join(json.dumps(figure, ensure_ascii=False) + "\n" for name in lessons for figure in evidence(out, name))
