"""After a failed cell its tensors die."""

import gc
import sys
import weakref

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from gpucourse.measure import release


def failing(alive):
    held = torch.zeros(1000)
    alive.append(weakref.ref(held))
    raise MemoryError("out of memory")


@pytest.fixture(autouse=True)
def nothing_remembered():
    yield
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        vars(sys).pop(name, None)


@pytest.fixture
def remembered():
    """A weak reference to a tensor that only a remembered exception keeps alive."""
    alive = []
    try:
        failing(alive)
    except MemoryError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__
    return alive[0]


def test_dies_at_release_and_not_before(remembered):
    gc.collect()
    assert remembered() is not None
    release()
    assert remembered() is None
    assert not hasattr(sys, "last_value")


def test_reaches_the_exceptions_that_one_came_from():
    alive = []
    try:
        try:
            failing(alive)
        except MemoryError:
            raise RuntimeError("the step failed") from None
    except RuntimeError as error:
        sys.last_value = error
    gc.collect()
    assert alive[0]() is not None
    release()
    assert alive[0]() is None


def test_the_next_cell_is_free_of_the_last_one():
    shell = InteractiveShell.instance()
    try:
        shell.user_ns["failing"], shell.user_ns["alive"] = failing, []
        shell.run_cell("failing(alive)", silent=True)
        gc.collect()
        assert shell.user_ns["alive"][0]() is not None
        shell.run_cell("from gpucourse import measure; measure.release()")
        assert shell.user_ns["alive"][0]() is None
    finally:
        InteractiveShell.clear_instance()


def test_nothing_to_release_is_no_error():
    release()
    release()
