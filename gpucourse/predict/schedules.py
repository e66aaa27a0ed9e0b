"""Pipeline schedules by name. A rank's order of work is written as phases: how often, and what each time.

F forward · B whole backward · I gradient of the input · W oldest owed gradient of the weights (an I owes one). Each
letter takes the next micro-batch. Where a rank holds two stages in a V, d and u name the leg: Fd is the forward on the
way down, stage r of p ranks, and Fu the one on the way up, stage 2p−1−r. F+B start together or not at all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpucourse.errors import BadInput, positive_int, unknown
from gpucourse.predict.actions import Action, Schedule

Phases = list[tuple[int, str]]


def gpipe(r: int, p: int, m: int, v: int) -> Phases:
    """Every forward, then every backward (GPipe, arXiv 1811.06965)."""
    return [(m, "F"), (m, "B")]


def one_f_one_b(r: int, p: int, m: int, v: int) -> Phases:
    """Only as many forwards ahead as fill the pipeline, then forward and backward in turn (arXiv 2006.09503)."""
    ahead = min(p - 1 - r, m)
    return [(ahead, "F"), (m - ahead, "F B"), (ahead, "B")]


def interleaved(r: int, p: int, m: int, v: int) -> Phases:
    """1F1B over v stages a rank, p micro-batches at a time through each (Megatron-LM, arXiv 2104.04473)."""
    ahead = min(2 * (p - 1 - r) + (v - 1) * p, m * v)
    return [(ahead, "F"), (m * v - ahead, "F B"), (ahead, "B")]


def zero_bubble(r: int, p: int, m: int, v: int) -> Phases:
    """1F1B with the backward in halves; r weight gradients wait for rank r's bubble (ZB-H1, arXiv 2401.10241)."""
    ahead = (p - 1 - r) + (v - 1) * p
    return [(ahead, "F"), (r, "F I"), (m * v - ahead - r, "F I W"), (ahead, "I W"), (r, "W")]


def zbv(r: int, p: int, m: int, v: int) -> Phases:
    """Two stages a rank in a V, every backward in halves (arXiv 2401.10241, section 6)."""
    return [(2 * (p - r) - 1, "Fd"), (r, "Fu Fd"), (p - r, "Fu Iu Wu"),
            (m - 2 * p + r + 1, "Fd Id Wd Fu Iu Wu"), (p - r - 1, "Id Wd Fu Iu Wu"),
            (r, "Id Iu"), (p - r, "Id Wd"), (r, "Wu"), (r, "Wd")]


def dualpipe(r: int, p: int, m: int, v: int) -> Phases:
    """DualPipeV: a V in which each forward meets another micro-batch's backward, whose communication it can hide.

    DeepSeek-V3, arXiv 2412.19437, section 3.2.1, and deepseek-ai/DualPipe for the V.
    """
    last = int(r == p - 1)
    half = (r + 1) // 2
    return [(2 * (p - r - 1), "Fd"), (r + 1, "Fd Fu"), (p - r - 1, "Iu W Fu"),
            (last, "Fd Bu Fu+Bd"), (m - 2 * p + r + 1 - last, "Fd+Bu Fu+Bd"), (p - r - 1, "Bu Fu+Bd"),
            (half, "Bu Bd"), ((r + 1) % 2, "Bu Id"), (half, "Iu Id"),
            (p - r - 1, "W Id"), (r + 1, "W")]


@dataclass(frozen=True)
class Family:
    """phases(rank, ranks, micro_batches, chunks). chunks: least and most stages a rank. least: micro-batches a rank."""

    phases: Callable[[int, int, int, int], Phases]
    chunks: tuple[int, int]
    least: int = 0
    vee: bool = False

    @property
    def alone(self) -> bool:
        """One stage a rank, always: torch plays these without a list of actions (PipelineScheduleSingle)."""
        return self.chunks == (1, 1)


SCHEDULES = {
    "gpipe": Family(gpipe, (1, 1)),
    "1f1b": Family(one_f_one_b, (1, 1)),
    "interleaved": Family(interleaved, (2, 64), least=1),
    "zero-bubble": Family(zero_bubble, (1, 64), least=1),
    "zbv": Family(zbv, (2, 2), least=2, vee=True),
    "dualpipe": Family(dualpipe, (2, 2), least=2, vee=True),
}


def schedule(name: str, ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """The schedule of that name for `ranks` pipeline ranks, or BadInput where these numbers do not allow it.

    chunks: stages a rank; 0 takes the fewest that the schedule works with.
    """
    v = stages_a_rank(name, ranks, micro_batches, chunks)
    p, m, family = ranks, micro_batches, SCHEDULES[name]
    queues = _vee if family.vee else _loop
    together: set[Action] = set()
    rows = [_written(family.phases(r, p, m, v), *queues(r, p, m, v), together) for r in range(p)]
    return Schedule(name, m, v, tuple(map(tuple, rows)), frozenset(together))


def stages_a_rank(name: str, ranks: int, micro_batches: int, chunks: int = 0) -> int:
    """The chunks that a schedule would have, without writing it out; BadInput as `schedule` raises it."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    p, m = positive_int("pipeline ranks", ranks), positive_int("micro-batches", micro_batches)
    family = SCHEDULES[name]
    low, high = family.chunks
    v = chunks or low
    if not low <= v <= high:
        allowed = f"{low}" if low == high else f"{low} to {high}"
        raise BadInput(f"chunks is {chunks}; {name} works with {allowed} stages a rank")
    if m < family.least * p:
        raise BadInput(f"micro-batches is {m}; {name} on {p} ranks needs at least {family.least * p}")
    if not family.vee and v > 1 and m % p:
        raise BadInput(f"micro-batches is {m}; {name} on {p} ranks takes them {p} at a time: use a multiple of {p}")
    return v


Work = dict[str, Iterator[tuple[int, int]]]  # leg of the V, or "": (stage, micro_batch), in the order to be taken


def _loop(r: int, p: int, m: int, v: int) -> tuple[Work, Work]:
    """Stages r, r+p, r+2p …: a group of micro-batches through each of them in turn, backwards from the last."""
    size = p if v > 1 else m
    groups = [range(start, start + size) for start in range(0, m, size)]
    forwards = [(chunk * p + r, i) for group in groups for chunk in range(v) for i in group]
    backwards = [(chunk * p + r, i) for group in groups for chunk in reversed(range(v)) for i in group]
    return {"": iter(forwards)}, {"": iter(backwards)}


def _vee(r: int, p: int, m: int, v: int) -> tuple[Work, Work]:
    legs = {"d": r, "u": 2 * p - 1 - r}
    return tuple({leg: iter([(stage, i) for i in range(m)]) for leg, stage in legs.items()} for _ in "FB")


def _written(phases: Phases, forwards: Work, backwards: Work, together: set[Action]) -> list[Action]:
    """The phases written out; the first of each pair is put into `together`."""
    row: list[Action] = []
    owed: list[tuple[str, Action]] = []

    def take(kind: str, leg: str) -> Action:
        if kind == "W":
            entry = next(entry for entry in owed if leg in ("", entry[0]))
            owed.remove(entry)
            return entry[1]
        action = Action(kind, *next((forwards if kind == "F" else backwards)[leg]))
        if kind == "I":
            owed.append((leg, action._replace(kind="W")))
        return action

    for times, letters in phases:
        for word in times * letters.split():
            done = [take(letter[0], letter[1:]) for letter in word.split("+")]
            row += done
            together.update(done[:-1])
    return row
