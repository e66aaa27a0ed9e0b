"""Which layers each stage of a pipeline has, and which stages each rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpucourse.catalog.layouts import Layout

VEE = ("zbv", "dualpipe")  # a rank has stage r on the way down and its mirror image on the way up


@dataclass(frozen=True)
class Part:
    """A run of layers. first: with the embeddings in front; last: with the final norm, the head and the loss.

    stages: how many make it up, each a module of its own.
    """

    layers: range
    first: bool = True
    last: bool = True
    stages: int = 1

    @property
    def whole(self) -> bool:
        return self.first and self.last and self.stages == 1


def part(layers: int, stages: int, stage: int) -> Part:
    """Layers of one stage, as even as they can be; the first stages have one more."""
    each, more = divmod(layers, stages)
    start = stage * each + min(stage, more)
    return Part(range(start, start + each + (stage < more)), stage == 0, stage == stages - 1)


def owned(parts: Sequence[Part], dense: int = 0) -> Part:
    """All that a rank with these stages has, as if its layers were one run, with as many of the model's first `dense`
    layers in it as the stages have."""
    layers = [layer for one in parts for layer in one.layers]
    start = dense - sum(layer < dense for layer in layers)
    return Part(range(start, start + len(layers)), any(one.first for one in parts), any(one.last for one in parts),
                len(parts))


def stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """The stages that a rank plays."""
    if layout.schedule in VEE:
        return (rank, 2 * layout.pp - 1 - rank)
    return tuple(range(rank, layout.stages, layout.pp))
