"""A server that batches continuously, simulated: requests arrive, share a paged cache and leave when they are done.

Time passes only by the two functions given: prefill(tokens) and decode(requests), in seconds, measured or computed.
In each turn those that may start are prefilled together, which gives each its next token; where nobody may, everyone
that runs is decoded by one token. A request that finds no block pre-empts the one that started last: its blocks are
freed, and it waits at the front of the queue until its prompt and what it has said are prefilled again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpucourse.errors import BadInput, positive_int
from gpucourse.predict.admission import greedy
from gpucourse.predict.paging import BlockPool, blocks_for
from gpucourse.predict.requests import Request
from gpucourse.predict.served import Run, Served, Turn

Seconds = Callable[[int], float]


@dataclass(eq=False)
class Active:
    """A request on its way: `done` tokens of its answer exist, the first since `first`."""

    request: Request
    done: int = 0
    first: float = 0.0
    preempted: int = 0

    @property
    def prompt(self) -> int:
        return self.request.prompt

    @property
    def answer(self) -> int:
        return self.request.answer

    def gain(self, now: float) -> None:
        self.done += 1
        self.first = self.first or now


def simulate(requests: Sequence[Request], prefill: Seconds, decode: Seconds, batch: int, blocks: int,
             block_size: int = 16, admit: Callable = greedy, refill: bool = True) -> Run:
    """Serve `requests`, at most `batch` at once, from a cache of `blocks`.

    admit: a rule of predict.admission. refill: start a request as soon as a place is free (continuous batching), or
    only when the whole batch has ended (static batching). BadInput for a request that the empty cache cannot hold.
    """
    positive_int("batch", batch)
    refuse_what_never_fits(requests, blocks, block_size)
    pool = BlockPool(blocks, block_size)
    coming = deque(sorted(requests, key=lambda request: request.arrival))
    waiting, running = deque(), []
    now, served, turns = 0.0, [], []
    while coming or waiting or running:
        while coming and coming[0].arrival <= now:
            waiting.append(Active(coming.popleft()))
        if not waiting and not running:
            now = coming[0].arrival
            continue
        places = batch - len(running) if refill or not running else 0
        starting = [waiting.popleft() for _ in range(min(places, admit(waiting, running, blocks, block_size)))]
        if not starting and not running:
            raise BadInput("the rule admits nobody to an empty server; it must start a request that fits alone")
        began, lost = now, []
        if starting:
            hold(pool, starting)
            tokens = sum(a.prompt + a.done for a in starting)
            now += prefill(tokens)
            gaining, running = starting, running + starting
        else:
            lost = make_room(pool, running)
            waiting.extendleft(lost)  # the last to be pre-empted started first: it ends up in front
            tokens, gaining = 0, running
            now += decode(len(running))
        for active in gaining:
            active.gain(now)
        turns.append(Turn(began, now, len(running), len(waiting), tokens, len(lost), pool.count - len(pool.free)))
        for active in [a for a in running if a.done == a.answer]:
            running.remove(active)
            pool.release(active)
            served.append(Served(active.request, active.first, now, active.preempted))
    return Run(tuple(served), tuple(turns))


def refuse_what_never_fits(requests: Sequence[Request], blocks: int, block_size: int) -> None:
    for request in requests:
        need = blocks_for(request.prompt + request.answer, block_size)
        if need > blocks:
            raise BadInput(f"a request of {request.prompt} + {request.answer} tokens needs {need} blocks; the cache "
                           f"has {blocks}: shorten it, or give the cache more")


def hold(pool: BlockPool, starting: Sequence[Active]) -> None:
    """Blocks for what each has so far and for the token that its prefill gives."""
    for active in starting:
        if not pool.grow(active, active.prompt + active.done + 1):
            raise BadInput("the rule admits more requests than there are free blocks; it must count what they hold now")


def make_room(pool: BlockPool, running: list[Active]) -> list[Active]:
    """One more token's place for each that runs, oldest first; returns those that were pre-empted for it."""
    lost = []
    place = 0
    while place < len(running):
        if pool.grow(running[place], 1):
            place += 1
            continue
        last = running.pop()
        pool.release(last)
        last.preempted += 1
        lost.append(last)
    return lost
