"""Check of 06.4: a rule of admission, in states made for one mistake each, and through a simulated day."""

import random
from dataclasses import dataclass

from gpucourse.exercises.expect import expect_at_most, expect_equal
from gpucourse.predict.admission import reserving
from gpucourse.predict.paging import blocks_for
from gpucourse.predict.requests import drawn
from gpucourse.predict.simulation import simulate


@dataclass(frozen=True)
class State:
    """A request as a rule of admission sees it."""

    prompt: int
    answer: int
    done: int = 0


def states(size: int):
    """Queue, running, blocks, and the one thing that this state is about."""
    draw = random.randint
    long = [State(draw(1, size), size * draw(8, 12), draw(1, 4)) for _ in range(3)]
    full = sum(blocks_for(r.prompt + r.answer, size) for r in long)
    yield ([State(size, size) for _ in range(6)], long, full + draw(4, 5),
           "Each that runs goes on growing, up to its prompt and its whole answer. Who is let in on blocks that it "
           "will still need?")
    yield ([State(size, draw(1, size // 3)) for _ in range(8)], [], draw(7, 9),
           "Count in blocks: a request's last one is its own, however few tokens are in it.")
    yield ([State(size, size), State(9 * size, size), State(1, 1)], [], 5,
           "First come, first served: who does not fit stops those behind.")
    yield ([State(size, 9 * size)] * 3, [], 19, "A request that starts needs room for its answer too.")
    yield ([State(size, 3 * size, done=2 * size)] * 4, [], 9,
           "A request that was pre-empted needs its prompt and its whole answer, what it has said included.")


def run_admit(function):
    """How many may start in states made for one mistake each, and a whole day with nobody pre-empted."""
    size, sound = random.choice((4, 8, 16)), True
    for place, (waiting, running, blocks, note) in enumerate(states(size), 1):
        got, right = function(list(waiting), list(running), blocks, size), reserving(waiting, running, blocks, size)
        yield expect_equal(f"state {place}: how many may start", got, right, note)
        sound &= got == right
    if not sound:  # such a rule would stop the simulated server
        return
    requests = drawn(120, 2.0, (4, 60), (10, 90), random.randrange(10**6))
    times = (lambda tokens: 0.002 * tokens, lambda count: 0.02 + 0.001 * count)
    best = simulate(requests, *times, 64, 60, 8, reserving)
    run = simulate(requests, *times, 64, 60, 8, function)
    yield expect_at_most("pre-emptions among 120 requests", run.preemptions, 0, "",
                         note="Somebody was let in on blocks that those who run still need.")
    yield expect_at_most("seconds for all of them, simulated", run.seconds, best.seconds, "s",
                         note="Nobody is pre-empted, and places stay empty that could be used.")


def broken_admit(need=lambda w, size: blocks_for(w.prompt + w.answer, size),
                 held=lambda r, size: blocks_for(r.prompt + r.answer, size), skip=False):
    def admit(waiting, running, blocks, block_size):
        free, count = blocks - sum(held(r, block_size) for r in running), 0
        for w in waiting:
            if need(w, block_size) > free:
                if skip:
                    continue
                break
            free, count = free - need(w, block_size), count + 1
        return int(count)
    return admit
