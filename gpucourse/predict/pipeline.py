"""What a pipeline's rank holds at each of its actions: its own, and the micro-batches that are in flight beside it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import NamedTuple

from gpucourse.catalog.jobs import Job
from gpucourse.predict.schedules import schedule

ACTIVE = 3  # stages of a rank whose weights are gathered at a time: torch's max_active_stages
GATHERED = ("", "F", "B")  # what a stage did last, from nothing gathered to all of it


class Situation(NamedTuple):
    """A forward or backward at a stage. began: a backward ran before. after: what the stage did last, F, B or nothing.

    others: micro-batches in flight, by stage. last: what the rank's other stages did last. Of more than ACTIVE stages
    only those count as having done something whose turn comes soon; the others have given back what they gathered.
    """

    kind: str
    stage: int
    began: bool
    after: str
    others: tuple[tuple[int, int], ...]
    last: tuple[tuple[int, str], ...]


def situations(job: Job, rank: int) -> tuple[Situation, ...]:
    """Those that no other one of their kind exceeds; job.accumulate is the number of micro-batches."""
    return _situations(*of_schedule(job), rank, job.layout.staged)


def of_schedule(job: Job) -> tuple[str, int, int, int]:
    layout = job.layout
    return layout.schedule, layout.pp, job.accumulate, layout.chunks


@cache
def _situations(name: str, ranks: int, micro_batches: int, chunks: int, rank: int,
                staged: bool) -> tuple[Situation, ...]:
    found: dict[tuple, list[Situation]] = {}
    for at in played(name, ranks, micro_batches, chunks, rank):
        if not staged:  # whole weights are there whatever a stage did last
            at = at._replace(after="", last=())
        of_kind = found.setdefault(at[:4], [])
        if not any(covers(other, at) for other in of_kind):
            of_kind[:] = [*(other for other in of_kind if not covers(at, other)), at]
    return tuple(chain(*found.values()))  # in a fixed order: of equally high moments the first stands in the ledger


@cache
def often(name: str, ranks: int, micro_batches: int, chunks: int, rank: int) -> Mapping[tuple[str, int, str], int]:
    """How often a rank plays each (kind, stage, after)."""
    return Counter((now.kind, now.stage, now.after) for now in played(name, ranks, micro_batches, chunks, rank))


def played(name: str, ranks: int, micro_batches: int, chunks: int, rank: int) -> Iterator[Situation]:
    """All of them in order."""
    return _played(schedule(name, ranks, micro_batches, chunks if chunks > 1 else 0).actions[rank])


def covers(at: Situation, other: Situation) -> bool:
    """Whether each stage has as many micro-batches in flight as in the other, and as much gathered."""
    flying, last = dict(at.others), dict(at.last)
    return (all(flying.get(stage, 0) >= count for stage, count in other.others)
            and all(GATHERED.index(last.get(stage, "")) >= GATHERED.index(did) for stage, did in other.last))


def soon(actions: Sequence, i: int) -> set[int]:
    """The first ACTIVE stages whose turn it is from action i on."""
    found: set[int] = set()
    for _, stage, _ in islice(actions, i, None):
        found.add(stage)
        if len(found) == ACTIVE:
            break
    return found


def _played(actions: Sequence) -> Iterator[Situation]:
    """In order; a micro-batch is in flight from its forward to its whole backward, or to its weights' half."""
    flying: dict[int, int] = {}
    last: dict[int, str] = {}
    began, many = False, len({stage for _, stage, _ in actions}) > ACTIVE
    for i, (kind, stage, _) in enumerate(actions):
        if many:
            turns = soon(actions, i)
            last = {s: did for s, did in last.items() if s in turns}
        own = 0 if kind == "F" else 1
        others = {s: count - (own if s == stage else 0) for s, count in flying.items()}
        if kind != "W":
            play = "F" if kind == "F" else "B"
            yield Situation(play, stage, began, last.get(stage, ""), tuple((s, c) for s, c in others.items() if c),
                            tuple((s, did) for s, did in last.items() if s != stage))
            last[stage] = play
        flying[stage] = flying.get(stage, 0) + {"F": 1, "B": -1, "W": -1, "I": 0}[kind]
        began = began or kind in "BI"
