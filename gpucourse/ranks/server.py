"""The process that starts ranks: it has torch loaded and forks, so that a rank begins in milliseconds.

It never touches a GPU and runs a single thread, which is what makes forking safe. When the notebook's kernel is gone,
however it ended, its sockets close, and the server kills the ranks and leaves. After the first launch it forks a
successor, which loads all that training uses and then takes over: no launch waits for that. Where forking a process
that has loaded torch is not safe (macOS), it starts fresh interpreters instead: slower, otherwise the same.

    kernel ── control ──▶ server      one byte and a socket: a new launch
    kernel ◀─ control ─── server      one byte: its successor has taken over
    kernel ◀─ launch ───▶ server      START + descriptors, STACK  ▶     ◀  the ended rank and its exit code
"""

import array
import contextlib
import gc
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

ORDER = struct.Struct("!cI")  # START or STACK, the rank
ENDED = struct.Struct("!Ii")  # the rank, its exit code
START, STACK = b"S", b"?"
DESCRIPTORS = 5  # most that come with START: the job's socket, output, stacks, clocks, rank 0's listening socket
IDLE = 0.05  # seconds without work before something more is loaded

FIRST = ("torch", "torch.distributed", "gpucourse.ranks.rank")
# What DDP, FSDP, pipelines and checkpoints load when first used: two seconds, in pieces, when there is nothing to do.
LATER = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch.distributed.fsdp",
         "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "torch.distributed.checkpoint",
         "torch.distributed.optim", "gpucourse.models", "gpucourse.ranks.paced", "gpucourse.ranks.counted")


@dataclass
class Launch:
    """Ranks that belong to one call of `run`, by process id. closing: the kernel wants them gone."""

    ranks: dict[int, int] = field(default_factory=dict)
    closing: bool = False


def main(control_fd: int, forks: bool) -> None:
    if forks:
        load(FIRST)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(socket.socket(fileno=control_fd), forks, raises=forks).serve()


def load(modules: tuple[str, ...]) -> None:
    gc.disable()  # a tenth of the time to import torch is the collector's, which finds nothing
    for name in modules:
        import_module(name)
    gc.freeze()  # forked copies share what is never collected
    gc.enable()


class Server:
    """raises: whether it is to raise a successor."""

    def __init__(self, control: socket.socket, forks: bool, raises: bool):
        control.setblocking(False)  # for a moment, server and successor both listen
        self.control, self.forks, self.raises = control, forks, raises
        self.successor: int | None = None
        self.launches: dict[socket.socket, Launch] = {}
        self.wake_read, self.wake_write = os.pipe()
        for end in (self.wake_read, self.wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write)
        self.selector = selectors.DefaultSelector()
        self.hear(self.wake_read, self.reap)
        self.hear(control, self.accept)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fd in self.selector.get_map():  # an earlier one may have closed it
                    key.data()

    def hear(self, source, act) -> None:
        self.selector.register(source, selectors.EVENT_READ, act)

    def raise_successor(self) -> None:
        ready, says = os.pipe()
        self.raises, self.successor = False, os.fork()
        if self.successor == 0:
            self.leave_all_but([self.control])
            load(LATER)
            os.write(says, b"+")
            os.close(says)
            Server(self.control, self.forks, raises=False).serve()
        os.close(says)
        self.hear(ready, partial(self.hand_over, ready))

    def hand_over(self, ready: int) -> None:
        """The successor has loaded all and listens, or has ended before it did."""
        self.selector.unregister(ready)
        if os.read(ready, 1):
            self.selector.unregister(self.control)
            with contextlib.suppress(OSError):
                self.control.send(b"+")  # stays to be read: whoever looks finds it
            self.control.close()
        os.close(ready)

    def accept(self) -> None:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        except BlockingIOError:
            return
        if not byte:
            self.kernel_is_gone()
        connection = socket.socket(fileno=descriptors[0])
        self.launches[connection] = Launch()
        self.hear(connection, partial(self.obey, connection))

    def kernel_is_gone(self) -> None:
        for connection in self.launches:
            self.kill(connection)
        if self.successor:
            os.kill(self.successor, signal.SIGKILL)
        os._exit(0)

    def obey(self, connection: socket.socket) -> None:
        launch = self.launches[connection]
        try:
            order, descriptors, _, _ = socket.recv_fds(connection, ORDER.size, DESCRIPTORS)
        except ConnectionError:
            order, descriptors = b"", []
        if not order:
            self.selector.unregister(connection)
            launch.closing = True
            self.kill(connection)
            self.close_if_done(connection)
            return
        what, rank = ORDER.unpack(order)
        if what == START:
            launch.ranks[self.start(descriptors)] = rank
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            for pid in [pid for pid, number in launch.ranks.items() if number == rank]:
                os.kill(pid, signal.SIGUSR1)

    def start(self, descriptors: list[int]) -> int:
        """The process id of a new rank, the leader of a process group of its own."""
        if not self.forks:
            code = "import sys; sys.path[:] = {!r}; from gpucourse.ranks.rank import main; main({!r})"
            command = [sys.executable, "-c", code.format(sys.path, [*descriptors])]
            return subprocess.Popen(command, pass_fds=descriptors, process_group=0, stdin=subprocess.DEVNULL).pid
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):  # a rank says what went wrong by itself
                self.become_rank(descriptors)
            os._exit(1)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def become_rank(self, descriptors: list[int]) -> None:
        os.setpgid(0, 0)
        self.leave_all_but([])
        for number, handler in ((signal.SIGCHLD, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            signal.signal(number, handler)
        sys.modules["gpucourse.ranks.rank"].main(descriptors)

    def leave_all_but(self, kept: list[socket.socket]) -> None:
        """In a forked copy: close what is the server's."""
        signal.set_wakeup_fd(-1)
        mine = {key.fd for key in self.selector.get_map().values()} | {launch.fileno() for launch in self.launches}
        for descriptor in mine - {end.fileno() for end in kept}:
            os.close(descriptor)
        os.close(self.wake_write)
        self.selector.close()

    def reap(self) -> None:
        """Tell each launch which of its ranks have ended, and kill what those have left running."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        while (pid := self.ended_child()) is not None:
            kill_group(pid)  # before its id is free for others
            _, status = os.waitpid(pid, 0)
            if pid == self.successor and self.control.fileno() < 0:
                os._exit(1)  # it had taken over
            for connection, launch in [*self.launches.items()]:
                if pid in launch.ranks:
                    rank = launch.ranks.pop(pid)
                    with contextlib.suppress(OSError):
                        connection.send(ENDED.pack(rank, os.waitstatus_to_exitcode(status)))
                    self.close_if_done(connection)

    def ended_child(self) -> int | None:
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            return ended.si_pid if ended else None
        return None

    def kill(self, connection: socket.socket) -> None:
        for pid in self.launches[connection].ranks:
            kill_group(pid)

    def close_if_done(self, connection: socket.socket) -> None:
        launch = self.launches[connection]
        if launch.closing and not launch.ranks:
            del self.launches[connection]
            connection.close()
            if self.raises:
                self.raise_successor()


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def send_order(connection: socket.socket, what: bytes, rank: int, descriptors: list[int]) -> None:
    """An order of the kernel's. Raises OSError when the server is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([ORDER.pack(what, rank)], rights)
