"""One timing at a time on this machine: a lock that all processes of one user share."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import psutil

_held: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quiet(patience: float = 120, folder: str | None = None) -> Iterator[str]:
    """Hold the machine-wide lock, so that jobs side by side do not spoil each other's timings.

    Gives "" when it is held, else one line that says why not: a figure may then be disturbed, but nothing waits for
    ever. Re-entrant; a process started by the holder counts as inside. The system frees the lock of a holder that dies.

    patience: seconds to wait for another holder. folder: where the lock file lies (the system's temporary folder).
    """
    if _held.get():
        yield ""
        return
    path = Path(folder or tempfile.gettempdir()) / f"gpucourse-{os.getuid()}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        yield f"timed without the machine's lock: {path.parent} is not writable ({error.strerror})"
        return
    try:
        note = _take(file, patience)
        mark = _held.set(True)
        try:
            yield note
        finally:
            _held.reset(mark)
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough while a forked child holds the file open
    finally:
        os.close(file)


def _take(file: int, patience: float) -> str:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode()
        except OSError as error:
            return f"timed without the machine's lock: {error.strerror}"
        else:
            os.pwrite(file, f"{os.getpid():<32}".encode(), 0)
            return ""
        if holder.strip() in {str(parent.pid) for parent in psutil.Process().parents()}:
            return ""
        if time.monotonic() > deadline:
            return f"timed while process {holder.strip()} was timing too: it held the machine's lock for {patience:g} s"
        time.sleep(0.05)
