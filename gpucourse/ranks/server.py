"""The process that starts ranks: it has torch loaded and forks, so that a rank begins in milliseconds.

It never touches a GPU and runs a single thread, which is what makes forking safe. When the notebook's kernel is gone,
however it ended, its sockets close, and the server kills the ranks and leaves. Where forking a process that has loaded
torch is not safe (macOS), it starts fresh interpreters instead: slower, otherwise the same.

    kernel ── control ──▶ server      one byte and a socket: a new launch
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
from importlib import import_module

ORDER = struct.Struct("!cI")  # START or STACK, the rank
ENDED = struct.Struct("!Ii")  # the rank, its exit code
START, STACK = b"S", b"?"
DESCRIPTORS = 5  # most that come with START: the job's socket, output, stacks, clocks, rank 0's listening socket
IDLE = 0.3  # seconds without work before something more is loaded

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
    control = socket.socket(fileno=control_fd)
    later = []
    if forks:
        later = [*LATER]
        for name in FIRST:
            import_module(name)
        gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(control, forks, later).serve()


class Server:
    def __init__(self, control: socket.socket, forks: bool, later: list[str]):
        self.control, self.forks, self.later = control, forks, later
        self.launches: dict[socket.socket, Launch] = {}
        self.wake_read, self.wake_write = os.pipe()
        for end in (self.wake_read, self.wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        self.selector.register(control, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            busy = any(launch.ranks for launch in self.launches.values())
            events = self.selector.select(IDLE if self.later and not busy else None)
            if not events and not busy:
                self.load_more()
            for key, _ in events:
                if key.fileobj == self.wake_read:
                    self.reap()
                elif key.fileobj is self.control:
                    self.accept()
                elif key.fileobj in self.launches:
                    self.obey(key.fileobj)

    def load_more(self) -> None:
        with contextlib.suppress(ImportError):
            import_module(self.later.pop(0))
        gc.collect()
        gc.freeze()

    def accept(self) -> None:
        byte, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        if not byte:  # the kernel is gone
            for connection in self.launches:
                self.kill(connection)
            sys.exit()
        connection = socket.socket(fileno=descriptors[0])
        self.launches[connection] = Launch()
        self.selector.register(connection, selectors.EVENT_READ)

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
        signal.set_wakeup_fd(-1)
        for number, handler in ((signal.SIGCHLD, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            signal.signal(number, handler)
        os.setpgid(0, 0)
        self.selector.close()
        for end in (self.wake_read, self.wake_write):
            os.close(end)
        for end in (self.control, *self.launches):
            end.close()
        sys.modules["gpucourse.ranks.rank"].main(descriptors)

    def reap(self) -> None:
        """Tell each launch which of its ranks have ended, and kill what those have left running."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        while (pid := self.ended_child()) is not None:
            kill_group(pid)  # before its id is free for others
            _, status = os.waitpid(pid, 0)
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


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def send_order(connection: socket.socket, what: bytes, rank: int, descriptors: list[int]) -> None:
    """An order of the kernel's. Raises OSError when the server is gone."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([ORDER.pack(what, rank)], rights)
