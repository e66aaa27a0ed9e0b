"""The parameter tensors of one rank, as rows and columns: what optimizers go through and what data parallel shards."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import ceil

from gpucourse.catalog.shapes import Shape

Tensor = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Tensors:
    """Of one rank: the two embeddings, each block the same, the final norm, the head (none where tied)."""

    embedding: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]
    block: tuple[Tensor, ...]
    final_norm: tuple[Tensor, ...]
    head: tuple[Tensor, ...]

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """All that belongs to no block."""
        return self.embedding + self.positions + self.final_norm + self.head

    def in_order(self, layers: int) -> Iterable[Tensor]:
        """As `model.parameters()` gives them."""
        return chain(self.embedding, self.positions, self.block * layers, self.final_norm, self.head)


def count(tensors: Iterable[Tensor]) -> int:
    """Elements."""
    return sum(rows * columns for rows, columns in tensors)


def share(tensors: Iterable[Tensor], ways: int) -> int:
    """Elements of the largest share when each tensor's rows are divided among `ways` ranks."""
    return sum(ceil(rows / ways) * columns for rows, columns in tensors)


@cache
def tensors(shape: Shape) -> Tensors:
    h, k, f = shape.hidden, shape.kv_hidden, shape.ffn
    norm = ((h, 1),) if shape.norm == "rmsnorm" else ((h, 1), (h, 1))

    def linear(inner: int, outer: int) -> tuple[Tensor, ...]:
        return ((outer, inner), (outer, 1)) if shape.bias else ((outer, inner),)

    attention = linear(h, h) + linear(h, k) + linear(h, k) + linear(h, h)
    mlp = linear(h, f) * (2 if shape.mlp == "swiglu" else 1) + linear(f, h)
    return Tensors(
        embedding=((shape.vocab, h),),
        positions=((shape.context, h),) if shape.positions == "learned" else (),
        block=norm + attention + norm + mlp,
        final_norm=norm,
        head=() if shape.tied else ((shape.vocab, h),),
    )
