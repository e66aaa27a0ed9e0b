"""One rank's step in numbers: what each block and the head cost, which tensors it owns, how they are shared out."""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

from gpucourse.catalog.jobs import PRECISIONS, Job, Precision, recompute_of_layers
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part
from gpucourse.predict import costs, half_costs
from gpucourse.predict.axes import axes, more
from gpucourse.predict.chunked import head_in_parts
from gpucourse.predict.half_costs import Halves
from gpucourse.predict.sizes import Size
from gpucourse.predict.tensors import Tensor, Tensors, count, part_of, share


@dataclass(frozen=True)
class Unit:
    """One of fully_shard's units on one rank: bytes gathered, and waiting for reduction.

    pack: the rank's own part in compute precision, made for the all-gather; 0 where the shards have that precision.
    """

    gathered: int = 0
    reduced: int = 0
    pack: int = 0


@dataclass(frozen=True)
class Units:
    """A block's unit, that of one with an ordinary MLP where others have experts, and that of all else, the ends.

    kept: a block's weights stay gathered from its forward to its backward.
    """

    block: Unit = Unit()
    dense: Unit = Unit()
    ends: int = 0
    ends_reduced: int = 0
    kept: bool = False


@cache
def units(own: Tensors, trained: Tensors, ways: int, expert_ways: int, width: int, autocast: bool,
          kept: bool) -> Units:
    """Of a part of the model that `ways` ranks share, and `expert_ways` its experts. width: bytes of a weight."""
    reduced = 4 if autocast else width

    def unit(common: tuple[Tensor, ...], trained: tuple[Tensor, ...], experts: tuple[Tensor, ...] = ()) -> Unit:
        mine, each = share(common, ways), share(experts, expert_ways)
        whole, frozen = ways * mine + expert_ways * each, ways * (mine - share(trained, ways))
        return Unit(width * whole, reduced * (whole - frozen), width * (mine + each) if autocast else 0)

    ends, ends_trained = (ways * share(part.ends, ways) for part in (own, trained))
    return Units(unit(own.common, trained.common, own.experts), unit(own.dense, trained.dense),
                 width * ends, reduced * ends_trained, kept)


class Step:
    """Everything that the moments of a step are computed from. seq, tokens: those of one context-parallel rank.

    part: the layers that forward and backward go through here. rank: all that the rank has, where that is more.
    began: whether gradients exist already; None where that follows from the job, as without a pipeline. reduces: not
    where unsharded gradients wait for a later micro-batch. after: what the part did last in its pipeline, F or B; "".
    gathered: whether the blocks' weights are gathered before this part begins: in a pipeline that is never undone after
    a backward. uncast: whether gradients of the last weights' half wait in the precision in which they were made.
    """

    after, gathered, uncast = "", False, False

    def __init__(self, shape: Shape, job: Job, part: Part | None = None, rank: Part | None = None,
                 began: bool | None = None, reduces: bool = True):
        self.shape, self.job, self.layout, self.bytes = shape, job, job.layout, job.bytes
        self.part = part or Part(range(shape.layers))
        self.rank = rank or self.part
        self.sharded = self.layout.shard == "zero3"
        self.precision = computing(job)
        self.layers = len(self.part.layers)
        # DDP's gradients are views of its buckets, which stay; a new gradient is made and copied in.
        in_buckets = self.layout.in_buckets and self.layout.bucket_view
        self.piles = self.layout.staged or self.layout.reduce == "last" and job.accumulate > 1
        self.reduces = reduces and not self.layout.staged
        self.finds = bool(began) if self.layout.staged else reduces or job.accumulate > 2  # unsharded ones, if any wait
        self.piled_width = 4 if self.bytes.autocast else self.precision.gradients
        stay = job.accumulate > 1 if began is None else began
        self.gradients_stay = (stay or in_buckets) and not self.piles
        again = self.gradients_stay and not self.sharded  # unsharded gradients are new in every backward pass
        if self.piles:  # but then they are added to, unless this is the first, or they are kept in another precision
            again = self.piled_width == self.precision.gradients and self.finds
        self.adds = again  # to gradients that exist
        self.axes = axes(self.layout)
        self.seq = job.seq // self.layout.cp
        self.tokens = job.micro_batch * self.seq
        self.dims = self.axes.values(shape, self.tokens, job.lora)
        self.own, self.trained = part_of(shape, self.axes, self.part, job.lora)
        self.all, self.all_trained = part_of(shape, self.axes, self.rank, job.lora)
        self.tied = shape.tied and self.part.whole and not job.lora
        self.stream_size = costs.stream(self.precision, self.axes)
        self.stream = self.at(self.stream_size)
        self.whole_stream = self.precision.weights * self.tokens * shape.hidden

    def once(self, after: str, uncast: bool = False) -> "Step":
        """The same once its part has done that, F or B, in its pipeline."""
        if not (after or uncast):
            return self
        _ = self.held, self.told_apart_forward, self.units  # not worked out by each copy
        step = object.__new__(Step)
        step.__dict__.update(self.__dict__)
        step.after, step.uncast = after, uncast
        step.gathered = self.layout.staged and (after in ("A", "B") or self.units.kept)
        return step

    @cached_property
    def described(self) -> list[tuple[Shape, str, bool]]:
        """For each layer: its shape, what of it is recomputed, and whether nobody asks it for a gradient."""
        layers, lora = self.part.layers, bool(self.job.lora)
        words = recompute_of_layers(self.job.recompute, self.shape.layers)[layers.start:layers.stop]
        ordinary = self.shape.but(experts=None) if self.own.dense_layers else self.shape
        return [(ordinary if self.is_dense(i) else self.shape, word, lora and layer == 0)
                for i, (layer, word) in enumerate(zip(layers, words, strict=True))]

    @cached_property
    def blocks(self) -> list[costs.Block]:
        found = {kind: self.block(*kind) for kind in set(self.described)}
        blocks = [found[kind] for kind in self.described]
        if not self.part.last:  # the next stage's gradient is held until the whole backward pass is over
            blocks[-1] = self.block(*self.described[-1], lent=True)
        return blocks

    def block(self, shape: Shape, recompute: str, first: bool, lent: bool = False) -> costs.Block:
        return costs.block(shape, self.precision, self.axes, self.tokens, recompute, self.adds, lent, self.job.lora,
                           first)

    @cached_property
    def head(self) -> costs.Head:
        job = self.job
        if job.chunked_loss:
            return head_in_parts(self.shape, self.precision, self.axes, self.tokens, job.chunked_loss, self.adds,
                                 self.tied, bool(job.lora))
        return costs.head(self.shape, self.precision, self.axes, self.tokens, self.sharded and self.bytes.autocast,
                          self.adds, bool(job.lora))

    @cached_property
    def block_halves(self) -> list[Halves]:
        """The same where a backward comes in halves."""
        last = -1 if self.part.last else self.layers - 1
        return [half_costs.block_halves(shape, self.precision, self.axes, self.job.lora, self.adds, i == 0, i == last)
                for i, (shape, _, _) in enumerate(self.described)]

    @cached_property
    def head_halves(self) -> Halves:
        return half_costs.head_halves(self.shape, self.precision, self.axes, self.sharded and self.bytes.autocast,
                                      self.adds, bool(self.job.lora))

    @cached_property
    def received(self) -> int:
        """What forward holds of the part's input, and blocks do not keep: at the first block that is its stream."""
        return 0 if self.part.first or self.blocks[0].keeps_stream else self.stream

    @cached_property
    def beside(self) -> int:
        return self.received + (8 * self.seq if self.trained.positions else 0)  # and the numbers of the positions

    @cached_property
    def kept_below(self) -> list[int]:
        """kept_below[i]: what the blocks below block i leave for backward."""
        stays = {id(block): self.at(block.stays) for block in self.blocks}
        return list(accumulate((stays[id(block)] for block in self.blocks), initial=0))

    def at(self, of: Size) -> int:
        return of.at(self.dims)

    @cached_property
    def told_apart(self) -> list[int]:
        """Blocks among which the highest moments of all blocks are: between them memory changes linearly."""
        last, kinds = self.layers - 1, self.described
        ends = {last} | {kinds.index(kind) for kind in kinds} | {last - kinds[::-1].index(kind) for kind in kinds}
        return sorted(ends | ({min(1, last), max(0, last - 1)} if self.has_middle else set()))

    @cached_property
    def told_apart_forward(self) -> list[int]:
        """The same in forward, where the block before the last is as those below it."""
        before, kinds = self.layers - 2, self.described
        alike = before > 1 and kinds[before - 1] == kinds[before] == kinds[before + 1]
        return [i for i in self.told_apart if i != before or not alike]

    @property
    def has_middle(self) -> bool:
        """Whether a block between the last and the first can hold more than both."""
        return self.layout.ranks > 1 or len(set(self.described)) > 1

    def is_dense(self, i: int) -> bool:
        """Whether block i of this part has an ordinary MLP although others have experts."""
        return self.part.layers.start + i < self.own.dense_layers

    def tensors_of(self, i: int) -> tuple[Tensor, ...]:
        return self.own.dense if self.is_dense(i) else self.own.block

    def trained_of(self, i: int) -> tuple[Tensor, ...]:
        return self.trained.dense if self.is_dense(i) else self.trained.block

    @cached_property
    def units(self) -> Units:
        if not self.sharded:
            return Units()
        return units(self.own, self.trained, self.layout.replicas, self.expert_ways, self.precision.weights,
                     self.bytes.autocast, self.layout.reshard == "never")

    def unit(self, i: int) -> Unit:
        return self.units.dense if self.is_dense(i) else self.units.block

    def gathered_of(self, layers: range) -> int:
        """Bytes of some layers' gathered weights."""
        dense, others = self.own.among(layers)
        return dense * self.units.dense.gathered + others * self.units.block.gathered

    def gathered_below(self, i: int) -> int:
        """Bytes of the blocks below block i whose weights stay gathered after forward."""
        return self.gathered_of(self.part.layers[:i]) if self.units.kept else 0

    def gathered_beside(self, i: int, backward: bool = False) -> int:
        """Bytes of the other blocks whose weights are gathered while block i works."""
        above = self.gathered_of(self.part.layers[i + 1:]) if self.gathered or self.layout.staged and backward else 0
        if self.gathered and backward:
            return above + self.gathered_of(self.part.layers[:i])
        return above + self.gathered_below(i)

    @property
    def expert_ways(self) -> int:
        """Ranks that have the same experts."""
        return self.layout.replicas // self.layout.ep

    @property
    def undivided_elements(self) -> int:
        """Elements of optimizer state of the tensors that tensor parallelism leaves whole."""
        if self.axes.tp == 1 or self.axes.sequence:
            return 0
        of = self.all_trained
        return self.elements("optimizer", of.positions + of.final_norm + of.undivided * len(self.rank.layers))

    def elements(self, kind: str, part: tuple[Tensor, ...], times: int = 1, ways: int = 0) -> int:
        """Elements that this rank keeps of a part's weights, gradients or optimizer state.

        ways: ranks that share it, where those are not all that see other tokens.
        """
        divided = {"weights": ("zero3",), "gradients": ("zero2", "zero3"), "optimizer": ("zero1", "zero2", "zero3")}
        if self.layout.shard not in divided[kind]:
            return times * count(part)
        ways = ways or self.layout.replicas
        return times * share(part, ways) if self.sharded else -(-times * count(part) // ways)

    def block_elements(self, kind: str, layers: range) -> int:
        """The same of some layers, all their tensors."""
        of = self.all if kind == "weights" else self.all_trained
        dense, others = of.among(layers)
        return (self.elements(kind, of.dense, dense) + self.elements(kind, of.common, others)
                + self.elements(kind, of.experts, others, self.expert_ways))

    def all_elements(self, kind: str) -> int:
        """The same of all that this rank has."""
        return self._all[kind]

    @cached_property
    def _all(self) -> dict[str, int]:
        return {kind: self._elements_of_all(kind) for kind in ("weights", "gradients", "optimizer")}

    def _elements_of_all(self, kind: str) -> int:
        # momentum begins as a copy of the gradients, and so keeps what tensor parallelism leaves whole of them
        as_gradients = kind == "gradients" or kind == "optimizer" and self.job.optimizer == "momentum"
        of = self.all if kind == "weights" else self.all_trained
        ends = of.ends_gradients if as_gradients and not self.sharded else of.ends
        return self.elements(kind, ends) + self.block_elements(kind, self.rank.layers)

    @cached_property
    def held(self) -> int:
        """What forward of this part leaves until its backward."""
        left = self.at(self.head.kept) if self.part.last else self.stream
        return self.kept_below[-1] + self.beside + left

    def where(self) -> str:
        names = dict(n="tokens", h="hidden", k="kv hidden", f="ffn", a="heads", V="vocabulary")
        names |= dict(q="heads × head size") if self.shape.q_hidden != self.shape.hidden else {}
        names |= dict(g="kv heads", d="head size") if self.shape.qk_norm else {}
        parts = [f"{letter} {name} {self.dims[letter]:,}" for letter, name in names.items()]
        parts += [f"{name} {size:,}" for name, size in more(self.shape, self.layout.ep).items()]
        return " · ".join([*parts, f"t ranks {self.axes.tp}"] if self.axes.tp > 1 else parts)


def computing(job: Job) -> Precision:
    """The precision that operations see: fully_shard gathers 16-bit weights in place of casting under autocast."""
    return PRECISIONS["bf16"] if job.layout.shard == "zero3" and job.bytes.autocast else job.bytes
