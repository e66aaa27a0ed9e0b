"""Give back the memory that a failed cell still holds through its traceback."""

import gc
import sys
import traceback
from contextlib import suppress

import torch


def release() -> None:
    """Free what the last exception keeps alive: the local variables of the frames in its traceback.

    Python and IPython remember the last exception, its traceback remembers every frame, and the frames their tensors:
    after running out of memory the next cell would too. The exception's text stays; post-mortem debugging of it does
    not. On a GPU the allocator's unused blocks go back to the driver as well.
    """
    for error in _remembered():
        forget_frames(error)
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        vars(sys).pop(name, None)
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def forget_frames(error: BaseException) -> None:
    """Clear the local variables of all finished frames of an exception and of those that it came from."""
    seen = set()
    pending = [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            with suppress(RuntimeError):  # it is still running
                frame.clear()
            _ = frame.f_locals  # before Python 3.13 a copy that a traceback printer took; asking anew empties it
        pending += [error.__context__, error.__cause__]


def _remembered() -> list[BaseException]:
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and shell.last_execution_result is not None:
        errors.append(shell.last_execution_result.error_in_exec)
    return [error for error in errors if error is not None]
