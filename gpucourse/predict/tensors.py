"""The parameter tensors of one rank, as rows and columns: what optimizers go through and what data parallel shards."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from math import ceil

from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part
from gpucourse.predict.axes import Axes, queries

Tensor = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Tensors:
    """Of one rank: the two embeddings, each block the same, its norms, the final norm, the head (none where tied).

    head_norms: those of each head's Q and K; `norms` are the two of the residual stream.

    table_gradient, positions_gradient: what a rank's gradients of the embeddings look like. Tensor parallelism leaves
    them whole, each rank with its part of the sum, until the optimizer needs them; a tied table's is divided sooner.
    """

    embedding: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]
    block: tuple[Tensor, ...]
    norms: tuple[Tensor, ...]
    head_norms: tuple[Tensor, ...]
    final_norm: tuple[Tensor, ...]
    head: tuple[Tensor, ...]
    table_gradient: tuple[Tensor, ...]
    positions_gradient: tuple[Tensor, ...]

    is_tied: bool

    def of(self, part: Part) -> "Tensors":
        """What a part of the model has of these; the last stage has a head of its own, tied or not."""
        if part.whole:
            return self
        first = {} if part.first else dict(embedding=(), positions=(), table_gradient=(), positions_gradient=())
        last = dict(head=self.head or self.embedding) if part.last else dict(final_norm=(), head=())
        return replace(self, is_tied=False, **first, **last)

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """All that belongs to no block."""
        return self.embedding + self.positions + self.final_norm + self.head

    @property
    def ends_gradients(self) -> tuple[Tensor, ...]:
        table = self.embedding if self.is_tied else self.table_gradient
        return table + self.positions_gradient + self.final_norm + self.head

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
def tensors(shape: Shape, axes: Axes) -> Tensors:
    """Tensor parallelism divides the first matrices of a block by rows, the second by columns, tables by rows."""
    sizes = axes.values(shape, 1)
    vocab, context = sizes[axes.part("V")], ceil(shape.context / (axes.tp if axes.sequence else 1))
    h = shape.hidden
    norm = ((h, 1),) if shape.norm == "rmsnorm" else ((h, 1), (h, 1))

    def first(outer: str, bias: bool = shape.bias) -> tuple[Tensor, ...]:
        rows = sizes[axes.part(outer)]
        return ((rows, h), (rows, 1)) if bias else ((rows, h),)

    def second(inner: str) -> tuple[Tensor, ...]:
        columns = sizes[axes.part(inner)]
        return ((h, columns), (h, 1)) if shape.bias else ((h, columns),)

    q, biased = queries(shape), shape.bias or shape.qkv_bias
    head_norms = ((shape.head_size, 1),) * 2 * shape.qk_norm
    attention = first(q, biased) + first("k", biased) + first("k", biased) + second(q) + head_norms
    mlp = first("f") * (2 if shape.mlp == "swiglu" else 1) + second("f")
    learned = shape.positions == "learned"
    return Tensors(
        embedding=((vocab, h),),
        positions=((context, h),) * learned,
        block=norm + attention + norm + mlp,
        norms=norm * 2,
        head_norms=head_norms,
        final_norm=norm,
        head=() if shape.tied else ((vocab, h),),
        table_gradient=((shape.vocab, h),),
        positions_gradient=((shape.context, h),) * learned,
        is_tied=shape.tied,
    )
