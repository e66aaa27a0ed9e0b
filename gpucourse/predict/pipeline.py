"""What a pipeline's rank holds at each of its actions: its own, and the micro-batches that are in flight beside it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from operator import ge
from typing import NamedTuple

from gpucourse.catalog.jobs import Job
from gpucourse.predict.schedules import SCHEDULES, schedule

ACTIVE = 3  # stages of a rank whose weights are gathered at a time: torch's max_active_stages
GATHERED = ("", "F", "B", "A")  # from nothing to all of a stage: after a forward, after a backward, all gathered ahead
NOT_YET = ("", "A")  # of a stage whose turn comes anew
SHARED, WHOLE, UNCAST = 1, 2, 3  # gradients: shared out, not, and not seen by a backward since; 0: there are none


class Beside(NamedTuple):
    """What a stage holds beside the action at hand.

    flying: micro-batches whose backward has not begun. owed: those of which only the half for the input ran. gathered:
    what of its weights is (GATHERED). gradients: 0, SHARED, WHOLE or UNCAST.
    """

    stage: int
    flying: int = 0
    owed: int = 0
    gathered: str = ""
    gradients: int = 0


class Situation(NamedTuple):
    """What a stage does, and what all stages of its rank hold beside it.

    kind: F forward; B backward, I and W its halves; R gradients are shared out. gradients, after: what of its own
    gradients there is, and what of its weights was gathered before.
    """

    kind: str
    stage: int
    gradients: int
    after: str
    beside: tuple[Beside, ...]


def situations(job: Job, rank: int, kinds: tuple[int, ...] = ()) -> tuple[Situation, ...]:
    """Those that no other one of their kind exceeds; job.accumulate is the number of micro-batches.

    kinds: a number for each of the rank's stages, equal where stages are alike; by default none are.
    """
    return _situations(*of_schedule(job), rank, job.layout.staged, kinds)


def of_schedule(job: Job) -> tuple[str, int, int, int]:
    layout = job.layout
    return layout.schedule, layout.pp, job.accumulate, layout.chunks


@cache
def _situations(name: str, ranks: int, micro_batches: int, chunks: int, rank: int,
                sharded: bool, kinds: tuple[int, ...]) -> tuple[Situation, ...]:
    found: dict[tuple, list[tuple[tuple[int, ...], Situation]]] = {}
    for at in played(name, ranks, micro_batches, chunks, rank, sharded):
        kind, amounts = held(at, kinds)
        of_kind = found.setdefault(kind, [])
        if not any(covers(other, amounts) for other, _ in of_kind):
            of_kind[:] = [*(one for one in of_kind if not covers(amounts, one[0])), (amounts, at)]
    # in a fixed order: of equally high moments the first stands in the ledger
    return tuple(at for of_kind in found.values() for _, at in of_kind)


def held(at: Situation, kinds: tuple[int, ...] = ()) -> tuple[tuple, tuple[int, ...]]:
    """What kind of situation it is; and what is held, as numbers: of two of a kind the one with larger ones holds more.

    Of stages that are alike it does not matter which holds what.
    """
    kinds = kinds or tuple(range(len(at.beside)))
    kind_of = {stage.stage: kind for stage, kind in zip(at.beside, kinds, strict=True)}
    amounts: list[int] = []
    for kind in dict.fromkeys(kinds):
        alike = [one for one in at.beside if kind_of[one.stage] == kind]
        others = [one for one in alike if one.stage != at.stage]
        amounts += [sum(one.flying + one.owed for one in alike), sum(one.owed for one in alike),
                    *sorted(GATHERED.index(one.gathered) for one in others), *sorted(one.gradients for one in others)]
    return (at.kind, kind_of[at.stage], at.gradients, at.after), tuple(amounts)


def covers(amounts: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(map(ge, amounts, other))


@cache
def often(name: str, ranks: int, micro_batches: int, chunks: int, rank: int) -> Mapping[tuple[str, int, str], int]:
    """How often a rank with sharded weights plays each (kind, stage, after)."""
    return Counter((now.kind, now.stage, now.after) for now in played(name, ranks, micro_batches, chunks, rank, True))


def played(name: str, ranks: int, micro_batches: int, chunks: int, rank: int, sharded: bool) -> list[Situation]:
    """All of a rank's situations in order."""
    actions = schedule(name, ranks, micro_batches, chunks if chunks > 1 else 0).actions[rank]
    playing = Rank(actions, sharded, ahead=sharded and not SCHEDULES[name].alone)
    return [now for i in range(len(actions)) for now in playing.play(i)]


class Rank:
    """A rank in the middle of its schedule: what each of its stages holds.

    ahead: whether the weights of the stages whose turn comes soon are gathered before it does, and those of the others
    given back. A stage that is alone gathers as it goes.
    """

    def __init__(self, actions: Sequence, sharded: bool, ahead: bool):
        self.actions, self.sharded, self.ahead = actions, sharded, ahead
        self.stages = {stage: Beside(stage) for stage in sorted({stage for _, stage, _ in actions})}
        self.left = Counter(stage for kind, stage, _ in actions if kind in "BW")  # until gradients are shared out

    def play(self, i: int) -> Iterator[Situation]:
        kind, stage, _ = self.actions[i]
        if self.ahead:
            self.gather(soon(self.actions, i))
        own = self.stages[stage]
        self.stages[stage] = own = own._replace(flying=own.flying - (kind in "BI"), owed=own.owed - (kind == "W"))
        # the first stage has no input that could have a gradient: all of its backward is done for the weights
        does = {"I": "", "W": "B"}.get(kind, kind) if stage == 0 else kind
        if does:
            yield self.now(does, stage)
            gathered = ("F" if kind == "F" else "B") if self.sharded else ""
            own = own._replace(gathered=gathered, gradients=self.gradients(does, own.gradients))
        self.stages[stage] = own = own._replace(flying=own.flying + (kind == "F"), owed=own.owed + (kind == "I"))
        self.left[stage] -= kind in "BW"
        if self.sharded and kind in "BW" and not self.left[stage]:
            yield self.now("R", stage)
            self.stages[stage] = own._replace(gathered="", gradients=SHARED)

    def now(self, kind: str, stage: int) -> Situation:
        own = self.stages[stage]
        return Situation(kind, stage, own.gradients, own.gathered, tuple(self.stages.values()))

    def gradients(self, kind: str, before: int) -> int:
        """After an action; whole weights have one precision."""
        if kind == "W" and self.sharded:
            return UNCAST
        return WHOLE if kind in "BW" or before == UNCAST and kind == "I" else before

    def gather(self, turns: set[int]) -> None:
        for stage, of in self.stages.items():
            if stage not in turns:
                self.stages[stage] = of._replace(gathered="")
            elif not of.gathered and of.gradients != SHARED:
                self.stages[stage] = of._replace(gathered="A")


def soon(actions: Sequence, i: int) -> set[int]:
    """The first ACTIVE stages whose turn it is from action i on."""
    found: set[int] = set()
    for _, stage, _ in islice(actions, i, None):
        found.add(stage)
        if len(found) == ACTIVE:
            break
    return found
