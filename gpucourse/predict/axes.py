"""How tensor parallelism divides what a block works on: which dimensions are divided among the ranks."""

from dataclasses import dataclass
from math import ceil

from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.shapes import Shape


@dataclass(frozen=True)
class Axes:
    """tp: ranks. sequence: norms and residual stream are divided along the tokens. loss: the loss works on V/t logits.

    Dimensions have names: n tokens, h hidden, k kv hidden, f ffn, a heads, V vocabulary; "h/t" is a rank's part of h.
    """

    tp: int = 1
    sequence: bool = False
    loss: bool = False

    @property
    def stream(self) -> str:
        """The tokens of the residual stream on one rank."""
        return "n/t" if self.sequence else "n"

    def part(self, dimension: str) -> str:
        return f"{dimension}/t" if self.tp > 1 else dimension

    def values(self, shape: Shape, tokens: int) -> dict[str, int]:
        """Elements along each dimension, whole and of the rank that has most."""
        whole = dict(n=tokens, h=shape.hidden, k=shape.kv_hidden, f=shape.ffn, a=shape.heads, V=shape.vocab)
        return whole | {f"{name}/t": ceil(size / self.tp) for name, size in whole.items() if self.tp > 1}


WHOLE = Axes()


def axes(layout: Layout) -> Axes:
    return Axes(layout.tp, layout.sequence_parallel, layout.vocab_parallel_loss)
