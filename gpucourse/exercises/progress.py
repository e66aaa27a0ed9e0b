"""The learner's progress: a file of events, one JSON object a line, that only ever grows.

Each event has v, time (UTC), lesson ("01"), exercise ("01.3" or "01.g1") and event, and then
    check     state, parts [right, all], hints (used so far)
    hint      step
    solution  –
    guess     state (given, blank, error), values {quantity: number}, unit
    off       off {quantity: guess ÷ what was found − 1}
A batch run keeps its own file in its output folder.
"""

import contextlib
import errno
import functools
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from gpucourse.settings import settings

VERSION = 1


def path() -> Path:
    now = settings()
    return (now.run or now.state or user_folder()) / "progress.jsonl"


def user_folder() -> Path:
    import platformdirs  # a seventh of what importing this room costs, and not needed where the folder is set

    return Path(platformdirs.user_state_dir("gpucourse", appauthor=False))


def add(event: str, id: str, **facts) -> None:
    """Append one event. Where the file cannot be written the event lives as long as this process, which says so."""
    entry = {"v": VERSION, "time": datetime.now(UTC).isoformat(timespec="seconds"), "lesson": id.partition(".")[0],
             "exercise": id, "event": event, **facts}
    file = path()
    try:
        append(file, [entry])
    except OSError as error:
        if not unsaved(file):
            print(f"Progress is not saved: {file}: {error.strerror}. The lesson goes on; to keep progress, "
                  "set GPUCOURSE_STATE to a folder that can be written.")
        unsaved(file).append(entry)


def events() -> list[dict]:
    """All events, oldest first. A file that is damaged or from a newer version is kept as a copy, which is said; the
    events that could be read go on in a new file."""
    file = path()
    entries, fault = read(file)
    if fault:
        kept = set_aside(file)
        if kept is not None:
            with contextlib.suppress(OSError):
                append(file, entries)
            print(f"Progress: {fault}. The file is kept as {kept.name}; the {len(entries)} events that could be read "
                  "go on in a new one.")
    return entries + unsaved(file)


def hints_used(id: str) -> int:
    return sum(entry["event"] == "hint" and entry["exercise"] == id for entry in events())


def attempted(id: str) -> bool:
    """True after a check that had an answer to look at, or that was skipped for want of hardware."""
    return any(entry["event"] == "check" and entry["exercise"] == id and entry.get("state") != "not attempted"
               for entry in events())


def read(file: Path) -> tuple[list[dict], str]:
    """The events of a file, and what is wrong with it ("" for nothing). A missing file has none.

    A line that was cut off while it was being written, by a full disk or a killed kernel, is skipped: it is no damage.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return [], ""
    entries, fault = [], ""
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if entry["v"] > VERSION:
                fault = fault or f"line {position} was written by a newer gpucourse (version {entry['v']})"
            elif isinstance(entry["exercise"], str) and isinstance(entry["event"], str):
                entries.append(entry)
        except (ValueError, TypeError, KeyError):
            if not line.startswith(b'{"v": '):
                fault = fault or f"line {position} cannot be read"
    return entries, fault


def append(file: Path, entries: Iterable[dict]) -> None:
    """Write all entries at once, so that two notebooks never mix their lines. Raises OSError."""
    text = "".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n" for entry in entries).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = b"\n" + text  # the last line was cut off: do not continue it
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def set_aside(file: Path) -> Path | None:
    """Rename the file to a name of its own; None where that is not possible or it is gone."""
    kept = file.with_name(f"progress.kept-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.jsonl")
    try:
        return file.rename(kept)
    except OSError:
        return None


@functools.cache
def unsaved(file: Path) -> list[dict]:
    """This process's events that could not be written to the file: hints and solutions go by them too."""
    return []
