"""A pipeline schedule as data: for each rank the list of what it does, in order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# forward; the whole backward; or its two halves: the gradient of the input, which the stage before waits for, and the
# gradient of the weights, which nobody waits for (zero-bubble pipelining, arXiv 2401.10241)
KINDS = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One kind of work on one micro-batch at one stage. Stages are counted along the whole model, from 0."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """actions[rank] is that rank's order of work. Each rank holds `chunks` of the ranks · chunks stages.

    together: actions that start only when the next one on their rank could start too.
    """

    name: str
    micro_batches: int
    chunks: int
    actions: tuple[tuple[Action, ...], ...]
    together: frozenset[Action] = frozenset()

    @property
    def ranks(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, row)) for row in self.actions)


def needs(action: Action, stages: int) -> Iterator[tuple[Action, ...]]:
    """What must have happened before: of each tuple, any one (a gradient comes from a whole backward or a half)."""
    kind, stage, micro_batch = action
    if kind == "F":
        if stage > 0:
            yield (Action("F", stage - 1, micro_batch),)
    elif kind == "W":
        yield (Action("I", stage, micro_batch),)
    else:
        yield (Action("F", stage, micro_batch),)
        if stage < stages - 1:
            yield Action("B", stage + 1, micro_batch), Action("I", stage + 1, micro_batch)
