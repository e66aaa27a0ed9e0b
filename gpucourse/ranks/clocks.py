"""Moments that the ranks of one machine tell each other, in memory that they share: no message is needed for it.

A channel holds the moments of one writer about one thing, such as its messages to a rank; the store numbers channels.
"""

import mmap
import os
import tempfile

CHANNELS, DEPTH = 4096, 1024  # moments that a channel keeps: so many transfers may be under way
BYTES = CHANNELS * DEPTH * 8


def create() -> int:
    """A descriptor of memory that processes can share; it takes room only where it is written."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("clocks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, BYTES)
    return descriptor


class Clocks:
    """The shared memory as one rank sees it. store: of the whole launch."""

    def __init__(self, descriptor: int, store):
        self._moments = memoryview(mmap.mmap(descriptor, BYTES)).cast("d", (CHANNELS, DEPTH))
        self._store = store
        self._channels: dict[str, int] = {}

    def open(self, name: str) -> None:
        """Make a channel to write to."""
        self._channels[name] = self._store.add("clocks", 1) % CHANNELS
        self._store.set(name, str(self._channels[name]))

    def write(self, name: str, number: int, moment: float) -> None:
        """Tell the moment of this channel's transfer `number`, counted from 0."""
        if name not in self._channels:
            self.open(name)
        self._moments[self._channels[name], number % DEPTH] = moment

    def read(self, name: str, number: int) -> float:
        """The moment that another rank told; an older one where it has not come so far. Waits for the channel."""
        if name not in self._channels:
            self._channels[name] = int(self._store.get(name))
        return self._moments[self._channels[name], number % DEPTH]
