"""The processes that ranks are started by, and those that they leave."""

import os

import psutil

from gpucourse.ranks import launching


def servers() -> list[psutil.Process]:
    """The process of this one that starts ranks, and its successor once there is one: of one process group."""
    first = psutil.Process(launching._server(os.getpid(), launching.FORKS).process.pid)
    return [first, *(child for child in first.children() if os.getpgid(child.pid) == os.getpgid(first.pid))]


def running() -> list[psutil.Process]:
    """Ranks, and processes that they have started."""
    try:
        alive = servers()
        return [process for process in alive[0].children(recursive=True) if process not in alive]
    except (psutil.NoSuchProcess, ProcessLookupError):
        return []
