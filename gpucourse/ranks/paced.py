"""A process group over gloo whose transfers take as long as they would over a stated link. Simulated, and labelled so.

The data go by gloo at once; what is waited for is the clock. A collective ends when its bytes have come by gloo and the
link would have carried them, counted from when the last rank joined; a message when it would have arrived. Nothing ends
sooner than gloo itself takes: to be seen, a link must be slower than some tenths of a millisecond and about 1 GB/s.
"""

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partialmethod

import torch
import torch.distributed as dist
from torch.futures import Future

from gpucourse.catalog.links import Link
from gpucourse.ranks import timeline
from gpucourse.ranks.clocks import Clocks
from gpucourse.ranks.line import Line, sleep_until
from gpucourse.ranks.traffic import KINDS, Call, of_method, tensor_bytes


def register(link: Link, clocks: Clocks) -> None:
    """Make `paced` a backend of torch.distributed in this process; all its groups share one line."""
    line = Line(link)

    def create(store, rank: int, size: int, timeout: timedelta) -> "Paced":
        return Paced(store, rank, size, timeout, line, clocks)

    dist.Backend.register_backend("paced", create, devices=["cpu"])


class Paced(dist.ProcessGroup):
    """Carries what gloo carries. Collectives end in the order in which they were begun, as on a GPU's stream."""

    def __init__(self, store, rank: int, size: int, timeout: timedelta, line: Line, clocks: Clocks):
        super().__init__(rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        carry_by(self, gloo)  # what has no method here, and the group's name
        self._data = dist.ProcessGroup(store, rank, size)  # counting sees its calls: they go through the dispatcher
        carry_by(self._data, gloo)
        self._line, self._clocks = line, clocks
        self._group = agreed(store, rank)
        self._clocks.open(self._joined(rank))
        self._begun: deque[Collective] = deque()
        self._count: Counter[str] = Counter()  # of transfers, by channel
        self._settling = threading.Lock()
        self._finisher = ThreadPoolExecutor(1, "paced link")

    def getBackendName(self) -> str:
        return "paced"

    def send(self, tensors, destination: int, tag: int) -> "Message":
        size = tensor_bytes(tensors)
        left, arrival = self._line.send(size)
        channel = self._messages(self.rank(), destination, tag)
        self._clocks.write(channel, self._next(channel), arrival)
        timeline.mark("send", left - size / self._line.link.bandwidth, left, row="link")
        return Message(self._data.send(tensors, destination, tag), lambda: left)

    def recv(self, tensors, source: int, tag: int) -> "Message":
        channel = self._messages(source, self.rank(), tag)
        number = self._next(channel)
        return Message(self._data.recv(tensors, source, tag), lambda: self._clocks.read(channel, number))

    def recv_anysource(self, tensors, tag: int) -> "Message":
        data = self._data.recv_anysource(tensors, tag)

        def arrival() -> float:
            channel = self._messages(data._source_rank(), self.rank(), tag)
            return self._clocks.read(channel, self._next(channel))

        return Message(data, arrival)

    def settle(self, collective: "Collective") -> None:
        """Find out when a collective, and those before it, begin and end: they use the line one after another."""
        with self._settling:
            while collective.end is None:
                turn = self._begun.popleft()
                turn.data.wait()
                joined = max(self._clocks.read(self._joined(rank), turn.number) for rank in range(self.size()))
                begin = self._line.ready(joined)
                turn.end = begin + self._line.seconds(turn.call)
                self._line.busy_until(turn.end)
                timeline.mark(turn.call.kind, begin, turn.end, row="link")

    def finish_later(self, collective: "Collective") -> None:
        """Complete the collective's future in its turn, for those who do not wait themselves, such as DDP."""
        self._finisher.submit(collective.complete)

    def _begin(self, method: str, *args, **kwargs) -> "Collective":
        channel = self._joined(self.rank())
        number = self._next(channel)
        self._clocks.write(channel, number, time.monotonic())  # before the data: who has those can read it
        data = getattr(self._data, method)(*args, **kwargs)
        call = of_method(method, args, self.rank(), self.size())
        collective = Collective(self, call, number, data, args[0] if args else None)
        self._begun.append(collective)
        return collective

    def _next(self, channel: str) -> int:
        self._count[channel] += 1
        return self._count[channel] - 1

    def _joined(self, rank: int) -> str:
        return f"{self._group}/{rank}/joined"

    def _messages(self, source: int, destination: int, tag: int) -> str:
        return f"{self._group}/{source}/to {destination}/{tag}"


for _method, _kind in KINDS.items():
    if _kind not in ("send", "receive"):  # messages have methods of their own above
        setattr(Paced, _method, partialmethod(Paced._begin, _method))


class Collective(dist.Work):
    """What a caller holds of a collective. number: which of its group's. written: the tensors that are waited for."""

    def __init__(self, group: Paced, call: Call, number: int, data: dist.Work, written):
        super().__init__()
        self.group, self.call, self.number, self.data, self.written = group, call, number, data, written
        self.end: float | None = None
        self._future: Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.group.settle(self)
        sleep_until(self.end)
        return True

    def get_future(self) -> Future:
        if self._future is None:
            self._future = Future()
            self.group.finish_later(self)
        return self._future

    def complete(self) -> None:
        try:
            self.wait()
            self._future.set_result(self.written)
        except Exception as error:
            self._future.set_exception(error)

    def is_completed(self) -> bool:
        return self.get_future().done()


class Message(dist.Work):
    """What a caller holds of a send or a receive. end: waits for the moment at which the link has done its part."""

    def __init__(self, data: dist.Work, end: Callable[[], float]):
        super().__init__()
        self._data, self._end = data, end

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._data.wait()
        sleep_until(self._end())
        return True

    def is_completed(self) -> bool:
        return self._data.is_completed() and self._end() <= time.monotonic()

    def _source_rank(self) -> int:
        return self._data._source_rank()


def agreed(store, rank: int) -> str:
    """A name of the group, the same on all its ranks and no other group's."""
    if rank == 0:
        store.set("group", secrets.token_hex(8))
    return store.get("group").decode()


def carry_by(group: dist.ProcessGroup, gloo: dist.ProcessGroupGloo) -> None:
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
