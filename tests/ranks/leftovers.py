"""The processes that ranks are started by, and those that they leave."""

import os

import psutil

from gpucourse.ranks import launching


def servers() -> list[psutil.Process]:
    """The process of this one that starts ranks, and its successor once there is one: of one process group."""
    first = psutil.Process(launching._server(os.getpid(), launching.FORKS).process.pid)
    return [first, *(child for child in first.children() if os.getpgid(child.pid) == os.getpgid(first.pid))]


def running() -> list[psutil.Process]:
    """Ranks, and processes that they have started: those that are not of the servers' process group."""
    try:
        first = servers()[0]
        return [process for process in first.children(recursive=True) if os.getpgid(process.pid) != first.pid]
    except (psutil.NoSuchProcess, ProcessLookupError):
        return []
