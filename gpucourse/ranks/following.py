"""A launch as the kernel sees it: what its ranks print, send back, and how they end."""

import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from gpucourse.errors import CourseError
from gpucourse.ranks import clocks, launching, messages, pickling, places
from gpucourse.ranks.relay import Relay
from gpucourse.ranks.report import Died, Outcome, Raised, Waiting
from gpucourse.ranks.telling import Begun, Listener, Told

STARTING = 120  # seconds for all ranks to have begun: the first launch of a kernel loads torch
GRACE = 0.5  # seconds for the other ranks to fail, or end, by themselves when one has failed
STACKS = 1.0  # seconds for a rank to say where it is
CHUNK = 65536


@dataclass
class Rank:
    """job, output, stacks: the kernel's ends. begun: whether it is in the function. outcome: None while it runs."""

    number: int
    job: socket.socket
    output: int
    stacks: int
    relay: Relay
    dump: bytearray = field(default_factory=bytearray)
    begun: bool = False
    outcome: Outcome | None = None

    @property
    def frames(self) -> tuple[places.Frame, ...]:
        return places.parse(self.dump.decode(errors="replace"))

    @property
    def has_told(self) -> bool:
        """Whether the whole stack has come: its outermost frame is the module that was started."""
        return self.dump.endswith((b" in <module>\n", b"  ...\n"))


class Launch:
    """Starts ranks over a connection to the server and follows them until all have ended or one has failed.

    timeout: seconds from when all ranks have begun.
    """

    def __init__(self, to_server: socket.socket, n: int, timeout: float):
        self.to_server, self.n, self.timeout = to_server, n, timeout
        self.deadline = time.monotonic() + STARTING
        self.late = False
        self.ranks: list[Rank] = []
        self.listeners: dict[Callable[[int], Listener], Listener] = {}
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is KeyboardInterrupt:
            self.leave_results()
            self.ask_stacks()
            for rank in self.running():
                error.add_note(f"rank {rank.number} {places.waits(rank.frames)}")
        self.drain()
        for rank in self.ranks:
            rank.relay.end()
            rank.job.close()
            os.close(rank.output)
            os.close(rank.stacks)
        self.selector.close()
        for listener in self.listeners.values():
            listener.close()

    def start(self, job: dict, call: list) -> None:
        """Start all ranks and send each its job. A rank that dies meanwhile is found by `follow`."""
        self.watch(self.to_server, self.hear_server)
        with socket.create_server(("127.0.0.1", 0), backlog=128) as store, open(clocks.create(), "rb") as shared:
            for number in range(self.n):
                self.add(number, [shared.fileno(), store.fileno()][: 2 if number == 0 else 1])
            port = store.getsockname()[1]
        for rank in self.ranks:
            try:
                messages.send(rank.job, pickling.pack(dict(job, rank=rank.number, port=port)))
                messages.send(rank.job, call)
            except OSError:
                continue

    def add(self, number: int, more: list[int]) -> None:
        job, job_there = socket.socketpair()
        output, output_there = os.pipe()
        stacks, stacks_there = os.pipe()
        rank = Rank(number, job, output, stacks, Relay(number))
        self.ranks.append(rank)
        os.set_blocking(output, False)
        os.set_blocking(stacks, False)
        launching.start(self.to_server, number, [job_there.fileno(), output_there, stacks_there, *more])
        job_there.close()
        os.close(output_there)
        os.close(stacks_there)
        self.watch(job, partial(self.hear_result, rank))
        self.watch(output, partial(self.hear_output, rank))
        self.watch(stacks, partial(self.hear_stack, rank))

    def follow(self) -> None:
        """Until all ranks have an outcome; a little longer than the first failure; at most until the deadline."""
        grace = math.inf
        while self.running() and (left := min(self.deadline, grace) - time.monotonic()) > 0:
            self.hear(left)
            if self.failures() and grace == math.inf:
                grace = time.monotonic() + GRACE
        if self.running():
            self.late = not self.failures()
            self.ask_stacks()
            for rank in self.running():
                rank.outcome = Waiting(rank.frames)

    def running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.outcome is None]

    def failures(self) -> list[Rank]:
        return [rank for rank in self.ranks if isinstance(rank.outcome, Raised | Died)]

    def ask_stacks(self) -> None:
        """Have every rank that runs write its stack, and wait for them."""
        asked = self.running()
        for rank in asked:
            rank.dump.clear()
            launching.ask_for_stack(self.to_server, rank.number)
        until = time.monotonic() + STACKS
        while (now := time.monotonic()) < until and not all(rank.has_told for rank in asked):
            self.hear(until - now)

    def watch(self, source, hear) -> None:
        self.selector.register(source, selectors.EVENT_READ, hear)

    def hear(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            if key.fd in self.selector.get_map():  # an earlier one may have closed it
                key.data()

    def hear_server(self) -> None:
        try:
            ended = launching.ended(self.to_server)
        except ConnectionError:
            ended = None
        if ended is None:
            raise CourseError("the process that starts ranks ended, and its ranks with it; run the cell again")
        number, code = ended
        rank = self.ranks[number]
        self.drain([rank])
        rank.outcome = rank.outcome or Died(code, rank.frames)

    def hear_result(self, rank: Rank) -> None:
        try:
            frames = messages.receive(rank.job)
        except EOFError:  # the server will say how it ended
            self.selector.unregister(rank.job)
            return
        try:
            value = pickling.unpack(frames)
        except Exception as error:
            said = f"its result cannot be read here ({type(error).__name__}: {error}); return tensors, numbers or text"
            value = Raised("", said, (), time.monotonic())
        if isinstance(value, Told):
            self.pass_on(rank, value)
        elif isinstance(value, Begun):
            self.count_in(rank)
        else:
            self.drain([rank])
            rank.relay.end()
            rank.outcome = value

    def count_in(self, rank: Rank) -> None:
        rank.begun = True
        if all(rank.begun for rank in self.ranks):
            self.deadline = time.monotonic() + self.timeout

    def pass_on(self, rank: Rank, told: Told) -> None:
        if told.listener not in self.listeners:
            self.listeners[told.listener] = told.listener(self.n)
        self.listeners[told.listener].hear(rank.number, told.value)

    def leave_results(self) -> None:
        """Hear no more of what ranks send: an interrupt may have cut a message in two."""
        for rank in self.ranks:
            if rank.job in self.selector.get_map():
                self.selector.unregister(rank.job)

    def hear_output(self, rank: Rank) -> None:
        self.take(rank.output, rank.relay.feed)

    def hear_stack(self, rank: Rank) -> None:
        self.take(rank.stacks, rank.dump.extend)

    def take(self, descriptor: int, use) -> bool:
        """Read once from a pipe; False when there is nothing more now, or ever."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
            return False
        use(data)
        return True

    def drain(self, ranks: Iterable[Rank] | None = None) -> None:
        """Take what is in the pipes now; of an endless output no more than what came before this call."""
        until = time.monotonic() + GRACE
        for rank in self.ranks if ranks is None else ranks:
            while time.monotonic() < until and self.take(rank.output, rank.relay.feed):
                pass
            while time.monotonic() < until and self.take(rank.stacks, rank.dump.extend):
                pass


