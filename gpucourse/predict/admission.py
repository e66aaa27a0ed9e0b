"""Who may start: rules that a server applies to the head of its queue.

A rule is admit(waiting, running, blocks, block_size) → how many from the front of `waiting` may start now. Of each
request it sees `prompt` and `answer`, its tokens, and `done`, those of the answer that exist already.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from gpucourse.predict.paging import blocks_for


class Seen(Protocol):
    prompt: int
    answer: int
    done: int


def greedy(waiting: Sequence[Seen], running: Sequence[Seen], blocks: int, block_size: int) -> int:
    """As many as the blocks that are free this moment hold, one token further than they are."""
    free = blocks - sum(blocks_for(r.prompt + r.done, block_size) for r in running)
    return leading((blocks_for(w.prompt + w.done + 1, block_size) for w in waiting), free)


def reserving(waiting: Sequence[Seen], running: Sequence[Seen], blocks: int, block_size: int) -> int:
    """As many as can all run to their full length: nobody is ever pre-empted."""
    free = blocks - sum(blocks_for(r.prompt + r.answer, block_size) for r in running)
    return leading((blocks_for(w.prompt + w.answer, block_size) for w in waiting), free)


def leading(needs: Iterable[int], free: int) -> int:
    """How many of `needs`, from the front, fit into `free` together; the first that does not ends the count."""
    count = 0
    for need in needs:
        free -= need
        if free < 0:
            break
        count += 1
    return count
