"""Every test here has a deadline, and leaves no rank behind."""

import signal

import pytest
from leftovers import running, servers

from gpucourse.ranks.running import warm_up

DEADLINE = 300  # seconds: far above what any test needs, also on a busy machine


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
    warm_up()
    assert len(servers()) == 2
