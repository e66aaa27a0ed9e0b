"""A schedule played out: when each action runs, how long ranks wait, how many micro-batches they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from gpucourse.errors import BadInput
from gpucourse.predict.actions import KINDS, Action, Schedule, needs


@dataclass(frozen=True)
class Costs:
    """Seconds of one stage's forward, input gradient and weight gradient; a whole backward is the sum of the last two.

    hop: seconds from the end of an action until another rank has its result. stages: each stage's share of work
    where they are uneven, 1 for an average one.
    """

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0
    hop: float = 0.0
    stages: tuple[float, ...] = ()

    def __post_init__(self):
        seconds = (self.forward, self.input_gradient, self.weight_gradient, self.hop, *self.stages)
        if not all(0 <= value < inf for value in seconds):
            raise BadInput(f"costs are {seconds}; each must be a number of at least 0")

    def of(self, action: Action) -> float:
        parts = {"F": self.forward, "I": self.input_gradient, "W": self.weight_gradient,
                 "B": self.input_gradient + self.weight_gradient}
        return parts[action.kind] * (self.stages[action.stage] if self.stages else 1)


EVEN = Costs()


@dataclass(frozen=True)
class Timeline:
    """spans: {action: (start, end)} in seconds. busy: seconds of work of each rank."""

    spans: Mapping[Action, tuple[float, float]]
    busy: tuple[float, ...]
    seconds: float

    @property
    def ideal(self) -> float:
        """The time without any waiting: the mean of the ranks' work."""
        return sum(self.busy) / len(self.busy)

    @property
    def bubble(self) -> float:
        """Waiting as a fraction of the total time: (p−1)/(m+p−1) for GPipe and 1F1B."""
        return 1 - self.ideal / self.seconds

    @property
    def bubble_of_ideal(self) -> float:
        """Waiting as a fraction of the ideal time: (p−1)/m for GPipe and 1F1B."""
        return self.seconds / self.ideal - 1


def timeline(schedule: Schedule, costs: Costs = EVEN) -> Timeline:
    """Every rank works through its list and waits for what an action needs; BadInput where the lists cannot finish."""
    _complete(schedule)
    if costs.stages and len(costs.stages) != schedule.stages:
        raise BadInput(f"{len(costs.stages)} stage costs for {schedule.stages} stages")
    rank_of = {action.stage: rank for rank, row in enumerate(schedule.actions) for action in row}
    spans: dict[Action, tuple[float, float]] = {}
    at = [0] * schedule.ranks
    free = [0.0] * schedule.ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.actions):
            while at[rank] < len(row):
                starts = [_ready(action, schedule.stages, spans, rank, rank_of, costs.hop)
                          for action in _group(schedule, row, at[rank])]
                if None in starts:
                    break
                start = max(free[rank], *starts)
                free[rank] = start + costs.of(row[at[rank]])
                spans[row[at[rank]]] = (start, free[rank])
                at[rank] += 1
                moved = True
    _all_done(schedule, at, spans)
    busy = tuple(sum(map(costs.of, row)) for row in schedule.actions)
    return Timeline(spans, busy, max(free))


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The most micro-batches, counted a stage, whose activations each rank holds at once.

    A forward adds one; a whole backward or a weight gradient, which needs them last, frees one.
    """
    change = {"F": 1, "B": -1, "W": -1, "I": 0}
    peaks = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            held += change[action.kind]
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def _group(schedule: Schedule, row: tuple[Action, ...], i: int) -> tuple[Action, ...]:
    """The actions that the i-th of a row starts with: itself, or the pair that it belongs to."""
    return row[i:i + 2] if row[i] in schedule.together else row[i:i + 1]


def _ready(action: Action, stages: int, spans: Mapping, rank: int, rank_of: Mapping, hop: float) -> float | None:
    """When everything that an action needs is there, or None while something has not happened."""
    start = 0.0
    for options in needs(action, stages):
        done = next((option for option in options if option in spans), None)
        if done is None:
            return None
        start = max(start, spans[done][1] + (hop if rank_of[done.stage] != rank else 0))
    return start


def _complete(schedule: Schedule) -> None:
    """Each micro-batch is at each stage forward once and backward once, whole or in halves, on one rank."""
    home: dict[int, int] = {}
    seen: set[Action] = set()
    for rank, row in enumerate(schedule.actions):
        for action in row:
            places = action.stage in range(schedule.stages), action.micro_batch in range(schedule.micro_batches)
            if action.kind not in KINDS or not all(places):
                raise BadInput(f"rank {rank} has {action}; kinds are {', '.join(KINDS)}, stages 0 to "
                               f"{schedule.stages - 1}, micro-batches 0 to {schedule.micro_batches - 1}")
            if action in seen:
                raise BadInput(f"rank {rank} does {action} a second time")
            if home.setdefault(action.stage, rank) != rank:
                raise BadInput(f"stage {action.stage} is on rank {home[action.stage]} and on rank {rank}")
            seen.add(action)
    for stage in range(schedule.stages):
        for i in range(schedule.micro_batches):
            kinds = "".join(kind for kind in "FBIW" if Action(kind, stage, i) in seen)
            if kinds not in ("FB", "FIW"):
                raise BadInput(f"micro-batch {i} at stage {stage} has {kinds or 'nothing'}; it needs F B, or F I W")


def _all_done(schedule: Schedule, at: list[int], spans: Mapping[Action, tuple[float, float]]) -> None:
    for rank, row in enumerate(schedule.actions):
        if at[rank] < len(row):
            missing = next(options[0] for action in _group(schedule, row, at[rank])
                           for options in needs(action, schedule.stages)
                           if not any(option in spans for option in options))
            raise BadInput(f"the schedule hangs: rank {rank} waits before {row[at[rank]]} for {missing}, "
                           "which never comes")
