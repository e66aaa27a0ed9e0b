"""The parameter tensors of one rank, as rows and columns: what optimizers go through and what data parallel shards."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, starmap
from math import ceil
from operator import mul

from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part
from gpucourse.predict.axes import Axes, queries
from gpucourse.predict.lora import adapters

Tensor = tuple[int, int]  # rows, columns


@dataclass(frozen=True, eq=False)
class Tensors:
    """Of one rank: the two embeddings, a block and its norms, the final norm, the head (none where tied).

    norms: the two of the residual stream. inner_norms: those of Q and K. experts: the last tensors of a block, of which
    each rank of expert parallelism has its own. undivided: what tensor parallelism leaves whole in a block. dense: the
    tensors of each of the first `dense_layers` blocks, which have an ordinary MLP.

    table_gradient, positions_gradient: what a rank's gradients of the embeddings look like. Tensor parallelism leaves
    them whole, each rank with its part of the sum, until the optimizer needs them; a tied table's is divided sooner.
    """

    embedding: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]
    block: tuple[Tensor, ...]
    norms: tuple[Tensor, ...]
    inner_norms: tuple[Tensor, ...]
    experts: tuple[Tensor, ...]
    undivided: tuple[Tensor, ...]
    dense: tuple[Tensor, ...]
    dense_layers: int
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

    def with_adapters(self, rank: int) -> tuple["Tensors", "Tensors"]:
        """These with adapters of `rank` on a block's matrices; and the adapters alone, which are what is trained."""
        added, ends = adapters(self.block, rank), ("embedding", "positions", "final_norm", "head", "table_gradient",
                                                   "positions_gradient", "norms", "inner_norms", "undivided", "dense")
        return replace(self, block=self.block + added), replace(self, block=added, **dict.fromkeys(ends, ()))

    @cached_property
    def common(self) -> tuple[Tensor, ...]:
        """Of a block what every rank has the same of."""
        return self.block[:len(self.block) - len(self.experts)]

    @cached_property
    def ends(self) -> tuple[Tensor, ...]:
        """All that belongs to no block."""
        return self.embedding + self.positions + self.final_norm + self.head

    @cached_property
    def ends_gradients(self) -> tuple[Tensor, ...]:
        table = self.embedding if self.is_tied else self.table_gradient
        return table + self.positions_gradient + self.final_norm + self.head

    def among(self, layers: range) -> tuple[int, int]:
        """How many of these layers have an ordinary MLP although others have experts, and how many are as `block`."""
        dense = max(0, min(layers.stop, self.dense_layers) - layers.start)
        return dense, len(layers) - dense

    def in_blocks(self, layers: range) -> int:
        """Elements of all tensors of these layers."""
        dense, others = self.among(layers)
        of_dense, of_other = self._of_a_block
        return dense * of_dense + others * of_other

    @cached_property
    def _of_a_block(self) -> tuple[int, int]:
        return count(self.dense), count(self.block)

    def in_order(self, layers: range) -> Iterable[Tensor]:
        """As `model.parameters()` gives them."""
        dense, others = self.among(layers)
        return chain(self.embedding, self.positions, self.dense * dense, self.block * others, self.final_norm,
                     self.head)


def count(tensors: Iterable[Tensor]) -> int:
    """Elements."""
    return sum(starmap(mul, tensors))


@cache
def share(tensors: tuple[Tensor, ...], ways: int) -> int:
    """Elements of the largest share when each tensor's rows are divided among `ways` ranks."""
    return sum(-(-rows // ways) * columns for rows, columns in tensors)


@cache
def part_of(shape: Shape, axes: Axes, part: Part, adapters: int) -> tuple[Tensors, Tensors]:
    """What a rank has of a part of the model, and what of that is trained: all, or adapters of this rank alone."""
    whole = tensors(shape, axes).of(part)
    return whole.with_adapters(adapters) if adapters else (whole, whole)


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

    def mlp(width: str) -> tuple[Tensor, ...]:
        return first(width) * (2 if shape.mlp == "swiglu" else 1) + second(width)

    q, biased = queries(shape), shape.bias or shape.qkv_bias
    inner_norms = ((shape.head_size, 1),) * 2 * shape.qk_norm
    attention = first(q, biased) + first("k", biased) + first("k", biased) + second(q) + inner_norms
    undivided = norm * 2
    if shape.latent:
        heads, low = sizes[axes.part("a")], shape.latent
        inner_norms = ((low.q_rank, 1), (low.kv_rank, 1))
        down = ((low.q_rank, h), (sizes["kv_down"], h))
        attention = (*down, *inner_norms, (heads * sizes["key"], low.q_rank), (heads * sizes["both"], low.kv_rank),
                     (h, heads * sizes["value"]))
        undivided += down + inner_norms
    dense = norm + attention + norm + mlp("f")
    router = own = shared = ()
    if shape.experts:
        local, wide = sizes["local_experts"], sizes[axes.part("expert_ffn")]
        router, own = ((shape.experts.count, h),), ((local * wide, h), (local * wide, h), (local * h, wide))
        shared = mlp("shared_ffn") if shape.experts.shared else ()
    learned = shape.positions == "learned"
    return Tensors(
        embedding=((vocab, h),),
        positions=((context, h),) * learned,
        block=norm + attention + norm + router + shared + own if shape.experts else dense,
        norms=norm * 2,
        inner_norms=inner_norms,
        experts=own,
        undivided=undivided + router,
        dense=dense,
        dense_layers=shape.experts.dense_layers if shape.experts else 0,
        final_norm=norm,
        head=() if shape.tied else ((vocab, h),),
        table_gradient=((shape.vocab, h),),
        positions_gradient=((shape.context, h),) * learned,
        is_tied=shape.tied,
    )
