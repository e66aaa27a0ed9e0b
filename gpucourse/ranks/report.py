"""What came of each rank, and the error that tells it: whose exception, from which line, and who waits where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucourse.errors import CourseError
from gpucourse.ranks import places
from gpucourse.ranks.places import Frame
from gpucourse.ranks.timeline import Span

SIGNALS = {4: "illegal instruction", 6: "abort", 7: "bus error", 8: "arithmetic error", 9: "killed",
           11: "segmentation fault", 15: "terminated"}


@dataclass(frozen=True)
class Returned:
    """The function returned `value`. spans: what it marked on the timeline."""

    value: object
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Raised:
    """An exception left the function. type: its name, "" where the rank itself explains. frames: outermost first.

    at: seconds on the machine's monotonic clock.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    at: float


@dataclass(frozen=True)
class Died:
    """The process ended without a word. code: as subprocess gives it. frames: of a crash, innermost first."""

    code: int
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """Still running when the launch ended. frames: its stack, innermost first; empty where it did not answer."""

    frames: tuple[Frame, ...] = ()


Outcome = Returned | Raised | Died | Waiting


class RankError(CourseError):
    """A launch failed. outcomes: what came of each rank, by rank."""

    def __init__(self, message: str, outcomes: Mapping[int, Outcome]):
        super().__init__(message)
        self.outcomes = dict(outcomes)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message names the cell's lines, the launcher's own are of no use."""
        return [f"RankError: {self}"]


def failed(outcomes: Mapping[int, Outcome], said: Mapping[int, Sequence[str]], timeout: float | None) -> RankError:
    """The error of a launch in which not every rank returned.

    said: the last lines that each rank printed. timeout: the deadline that has passed, if it was that.
    """
    first = first_failure(outcomes)
    head = [] if timeout is None else [f"not all ranks had finished after {timeout:g} s"]
    order = sorted(outcomes, key=lambda rank: (rank != first, rank))
    lines = [line for rank in order for line in describe(rank, outcomes[rank], rank == first, said.get(rank, ()))]
    return RankError("\n".join([*head, *lines]), outcomes)


def first_failure(outcomes: Mapping[int, Outcome]) -> int | None:
    """The rank that failed first. One that died has failed before those that lost their connection to it."""
    died = [rank for rank, outcome in outcomes.items() if isinstance(outcome, Died)]
    raised = [rank for rank, outcome in outcomes.items() if isinstance(outcome, Raised)]
    return min(died, default=min(raised, key=lambda rank: outcomes[rank].at, default=None))


def describe(rank: int, outcome: Outcome, first: bool, said: Sequence[str]) -> list[str]:
    last = f'; it last printed "{said[-1]}"' if said else ""
    match outcome:
        case Returned():
            return [f"rank {rank} had returned"]
        case Waiting(frames):
            return [f"rank {rank} {places.waits(frames)}{last}"]
        case Died(code, frames):
            return [f"rank {rank} {ending(code)}{last}", *places.trace(frames[::-1])]
        case Raised("", message, _, _):
            return [f"rank {rank}: {message}"]
        case Raised(kind, message, frames, _):
            raised = f"rank {rank} raised {kind}: {message}" if message else f"rank {rank} raised {kind}"
            return [raised + last, *places.trace(frames)] if first else [places.shortened(raised), *places.last(frames)]


def ending(code: int) -> str:
    """How a process ended that sent no answer."""
    if code < 0:
        name = SIGNALS.get(-code, "")
        memory = "; the system does this when memory runs out" if code == -9 else ""
        return f"was ended by signal {-code}{f' ({name})' if name else ''}{memory}"
    return f"left with exit code {code} before it returned"
