"""Time as the GPU sees it: two events in its queue, before and after the work."""

from collections.abc import Callable

import torch

from gpucourse.errors import Missing, positive_int


def event_seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Seconds that `repeats` calls take on the GPU, divided by their number; the host waits once, at the end.

    Against a clock on the host this leaves out the launches, as far as the queue never runs empty. One untimed call
    comes first. Raises Missing without a GPU.
    """
    positive_int("repeats", repeats)
    if not torch.cuda.is_available():
        raise Missing("events need a GPU; on a CPU a call returns when its work is done, and a plain clock will do")
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats  # elapsed_time is in ms
