"""What a rank tells the kernel while it runs: values, over the socket that its result will go over.

Each is for a listener, which the rank names and the kernel makes. So a launch shows a chart, and knows no charts.
"""

import os
import pickle
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from gpucourse.ranks import messages


class Listener(Protocol):
    """The kernel's end: of one launch, for all of its ranks."""

    def hear(self, rank: int, value: object) -> None: ...

    def close(self) -> None:
        """The launch has ended, well or not."""


@dataclass(frozen=True)
class Begun:
    """The rank has joined the others, and calls the function now."""


@dataclass(frozen=True)
class Told:
    """listener: makes the one that `value` is for, given the number of ranks."""

    listener: Callable[[int], Listener]
    value: object


@dataclass(frozen=True)
class Channel:
    """The rank's end, for all of its threads. paced: whether the ranks' link is simulated."""

    kernel: socket.socket
    rank: int
    ranks: int
    paced: bool
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, frames: list) -> None:
        """Raises OSError when the kernel is gone."""
        with self.lock:
            messages.send(self.kernel, frames)

    def begin(self) -> None:
        self.send([pickle.dumps(Begun())])

    def tell(self, listener: Callable[[int], Listener], value: object) -> None:
        """Have the launch's `listener` hear `value`. Raises OSError when the kernel is gone."""
        self.send([pickle.dumps(Told(listener, value), protocol=5)])


def open_channel(kernel: socket.socket, job: dict) -> Channel:
    """Make this process the rank of `job`."""
    mine = Channel(kernel, job["rank"], job["world_size"], job["link"] is not None)
    _mine(os.getpid()).append(mine)
    return mine


def channel() -> Channel | None:
    """This process's channel to the kernel, where it is a rank; None elsewhere, also in a process that a rank forks."""
    return next(iter(_mine(os.getpid())), None)


@cache
def _mine(process: int) -> list[Channel]:
    return []
