"""Several calls timed in turn, round after round, so that a busy moment of the machine hits all of them."""

import time
from collections.abc import Callable, Mapping

from gpucourse.errors import positive_int
from gpucourse.measure.devices import synchronize
from gpucourse.measure.lock import quiet


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, tuple[float, ...]]:
    """Seconds of each call in each round, by name, after one untimed call of each.

    The least of a call's seconds says what the machine can do, their median what it usually does.
    """
    positive_int("rounds", rounds)
    with quiet():
        for call in calls.values():
            call()
        turns = [{name: _seconds(call) for name, call in calls.items()} for _ in range(rounds)]
    return {name: tuple(turn[name] for turn in turns) for name in calls}


def _seconds(call: Callable[[], object]) -> float:
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin
