"""Every test here has a deadline, and leaves no rank behind."""

import os
import signal
import time

import psutil
import pytest

from gpucourse import ranks
from gpucourse.ranks import launching

DEADLINE = 120  # seconds: far above what any test needs, also on a busy machine


@pytest.fixture(autouse=True)
def deadline():
    def over(*_):
        raise TimeoutError(f"the test did not end within {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_rank_left():
    yield
    assert running() == []


@pytest.fixture(scope="module")
def loaded():
    """For tests whose ranks train: wait until the server has loaded what that needs."""
    ranks.run(int, 1)
    until = time.monotonic() + DEADLINE
    while len(servers()) < 2 or servers()[-1].cpu_percent(0.3) > 5:
        assert time.monotonic() < until


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
