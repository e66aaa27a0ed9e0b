"""A rank's end of a link that does not exist: when a transfer that is asked for now would begin and end.

Times are seconds on the machine's monotonic clock, the same for all processes.
"""

import threading
import time

from gpucourse.catalog.links import Link
from gpucourse.predict import link as links
from gpucourse.ranks.traffic import Call

LIKE = {"gather": "all-gather", "scatter": "all-gather", "barrier": "all-reduce"}  # what takes as long


class Line:
    """One transfer at a time: the next begins when the last has left."""

    def __init__(self, link: Link):
        self.link = link
        self._free = 0.0
        self._lock = threading.Lock()

    def ready(self, asked: float) -> float:
        """When a transfer that was asked for at `asked` can begin."""
        with self._lock:
            return max(asked, self._free)

    def busy_until(self, end: float) -> None:
        with self._lock:
            self._free = max(self._free, end)

    def send(self, size: int) -> tuple[float, float]:
        """A message of `size` bytes leaves now: when its last byte has left, and when it has arrived."""
        with self._lock:
            self._free = max(time.monotonic(), self._free) + size / self.link.bandwidth
            return self._free, self._free + self.link.latency

    def seconds(self, call: Call) -> float:
        """How long a collective takes from when its last rank has joined; messages × α + bytes × β."""
        return links.seconds(LIKE.get(call.kind, call.kind), call.size, call.ranks, self.link)


def sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
