"""The kernel's side of the server: start it once, ask it for ranks, have them ended."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from gpucourse.errors import CourseError
from gpucourse.ranks import server as orders

FORKS = sys.platform == "linux"  # macOS's libraries do not survive a fork
PATIENCE = 30  # seconds for the server to see its ranks gone


class Server:
    """A running server of this process. Threads may share it: each launch has a socket of its own."""

    def __init__(self, forks: bool):
        self.control, theirs = socket.socketpair()
        code = "import sys; sys.path[:] = {!r}; from gpucourse.ranks.server import main; main({}, {})"
        command = [sys.executable, "-c", code.format(sys.path, theirs.fileno(), forks)]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def connect(self) -> socket.socket:
        """A socket for one launch. Raises OSError when the server is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        return ours


@cache
def _server(owner: int, forks: bool) -> Server:
    """One server for each process: a forked copy of the kernel must not share its sockets."""
    return Server(forks)


def loaded(seconds: float) -> bool:
    """Whether the server has loaded all that training uses, or does so within `seconds`."""
    server = _server(os.getpid(), FORKS)
    return server.alive and bool(select.select([server.control], [], [], seconds)[0])


@contextmanager
def connection() -> Iterator[socket.socket]:
    """A launch's connection to the server. On leaving, every rank that it started has ended, and so have theirs."""
    if not _server(os.getpid(), FORKS).alive:
        _server.cache_clear()
    try:
        to_server = _server(os.getpid(), FORKS).connect()
    except OSError as error:
        raise CourseError(f"the process that starts ranks ended ({error}); run the cell again") from error
    try:
        yield to_server
    finally:
        _end(to_server)


def _end(to_server: socket.socket) -> None:
    with contextlib.suppress(OSError), to_server:
        to_server.shutdown(socket.SHUT_WR)
        to_server.settimeout(PATIENCE)
        while to_server.recv(4096):
            pass


def start(to_server: socket.socket, rank: int, descriptors: list[int]) -> None:
    orders.send_order(to_server, orders.START, rank, descriptors)


def ask_for_stack(to_server: socket.socket, rank: int) -> None:
    with contextlib.suppress(OSError):
        orders.send_order(to_server, orders.STACK, rank, [])


def ended(to_server: socket.socket) -> tuple[int, int] | None:
    """The next rank that has ended, and its exit code; None when the server itself is gone."""
    answer = to_server.recv(orders.ENDED.size, socket.MSG_WAITALL)
    return orders.ENDED.unpack(answer) if len(answer) == orders.ENDED.size else None
