"""How tensor and context parallelism divide what a block works on: which dimensions are divided among the ranks."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.shapes import Shape
from gpucourse.predict.sizes import Dims


@dataclass(frozen=True)
class Axes:
    """tp: ranks. sequence: norms and residual stream are divided along the tokens. loss: the loss works on V/t logits.
    cp: ranks that each have a part of every sequence; n counts the tokens of one of them. ep: ranks that divide the
    experts.

    Dimensions have names: n tokens, h hidden, q and k the widths of queries and of keys, f ffn, a heads, g kv heads,
    d head size, V vocabulary; "f/t" is a rank's part of f.
    """

    tp: int = 1
    sequence: bool = False
    loss: bool = False
    cp: int = 1
    ep: int = 1

    @property
    def stream(self) -> str:
        """The tokens of the residual stream on one rank."""
        return "n/t" if self.sequence else "n"

    def part(self, dimension: str) -> str:
        """Of a product the first is divided."""
        first, *rest = dimension.split()
        return " ".join([f"{first}/t", *rest]) if self.tp > 1 else dimension

    @lru_cache(maxsize=256)  # noqa: B019 - axes are few, and values
    def values(self, shape: Shape, tokens: int, rank: int = 0) -> Dims:
        """Elements along each dimension, whole and of the rank that has most. rank: of adapters."""
        whole = dict(n=tokens, h=shape.hidden, q=shape.q_hidden, k=shape.kv_hidden, f=shape.ffn, a=shape.heads,
                     g=shape.kv_heads, d=shape.head_size, V=shape.vocab, rank=rank) | more(shape, self.ep)
        return Dims(whole | {f"{name}/t": ceil(size / self.tp) for name, size in whole.items() if self.tp > 1})


WHOLE = Axes()


def more(shape: Shape, ranks: int) -> dict[str, int]:
    """Dimensions of latent attention, and of experts that `ranks` divide."""
    low, of, d, found = shape.latent, shape.experts, shape.head_size, {}
    if low:
        found |= dict(q_rank=low.q_rank, kv_rank=low.kv_rank, kv_down=low.kv_rank + low.rope_size, rope=low.rope_size,
                      key=d + low.rope_size, both=d + low.value_size, value=low.value_size)
    if of:
        found |= dict(experts=of.count, local_experts=of.count // ranks, visits=of.per_token, expert_ffn=of.ffn,
                      shared_ffn=of.shared * of.ffn)
    return found


def queries(shape: Shape) -> str:
    """The dimension of Q's width: h where heads divide the hidden width among them, as they mostly do."""
    return "h" if shape.q_hidden == shape.hidden else "q"


def axes(layout: Layout) -> Axes:
    return Axes(layout.tp, layout.sequence_parallel, layout.vocab_parallel_loss, layout.cp, layout.ep)
