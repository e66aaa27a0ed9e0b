"""Each worker of a test run, and all that it starts, computes on its share of the cores.

Threads that outnumber the cores wait for each other in every matrix product.
"""

import os
import signal

import pytest

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):  # set in a worker, and not in what starts them
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))


@pytest.fixture
def interruptible():
    """A process started in the background may have been told to ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
