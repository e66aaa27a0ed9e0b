"""One rank's step in numbers: what each block and the head cost, which tensors it owns, how they are shared out."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from gpucourse.catalog.jobs import PRECISIONS, Job, Precision, recompute_of_layers
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part
from gpucourse.predict import costs
from gpucourse.predict.axes import axes
from gpucourse.predict.chunked import head_in_parts
from gpucourse.predict.recompute import WHOLE
from gpucourse.predict.sizes import Size
from gpucourse.predict.tensors import Tensor, Tensors, count, share, tensors


@dataclass(frozen=True)
class Units:
    """fully_shard's units on one rank, bytes gathered or waiting for reduction: one block, and the ends together.

    kept: a block's weights stay gathered from its forward to its backward. pack: the rank's own part of a block in
    compute precision, made for the all-gather; 0 where the shards have that precision.
    """

    block: int
    ends: int
    block_reduced: int
    ends_reduced: int
    pack: int
    kept: bool


class Step:
    """Everything that the moments of a step are computed from. seq, tokens: those of one context-parallel rank.

    part: the layers that forward and backward go through here. rank: all that the rank has, where that is more.
    began: whether gradients exist already; None where that follows from the job, as without a pipeline.
    """

    def __init__(self, shape: Shape, job: Job, part: Part | None = None, rank: Part | None = None,
                 began: bool | None = None):
        self.shape, self.job, self.layout, self.bytes = shape, job, job.layout, job.bytes
        self.part = part or Part(range(shape.layers))
        self.rank = rank or self.part
        self.sharded = self.layout.shard == "zero3"
        self.precision = computing(job)
        self.layers = len(self.part.layers)
        # DDP's gradients are views of its buckets, which stay; a new gradient is made and copied in.
        in_buckets = self.layout.in_buckets and self.layout.bucket_view
        self.gradients_stay = (job.accumulate > 1 if began is None else began) or in_buckets
        again = self.gradients_stay and not self.sharded  # unsharded gradients are new in every backward pass
        self.axes = axes(self.layout)
        self.seq = job.seq // self.layout.cp
        self.tokens = job.micro_batch * self.seq
        self.dims = self.axes.values(shape, self.tokens)
        self.own: Tensors = tensors(shape, self.axes).of(self.part)
        self.all: Tensors = tensors(shape, self.axes).of(self.rank)
        of = (shape, self.precision, self.axes, self.tokens)
        layers = self.part.layers
        words = recompute_of_layers(job.recompute, shape.layers)[layers.start:layers.stop]
        self.recomputed = [word in WHOLE for word in words]
        kinds = {word: costs.block(*of, word, again) for word in set(words)}
        self.blocks = [kinds[word] for word in words]
        if not self.part.last:  # the next stage's gradient is held until the whole backward pass is over
            self.blocks[-1] = costs.block(*of, words[-1], again, lent=True)
        self.tied = shape.tied and self.part.whole
        self.head = (head_in_parts(shape, self.precision, self.tokens, job.chunked_loss, again, self.tied)
                     if job.chunked_loss else costs.head(*of, self.sharded and self.bytes.autocast, again))
        self.stream_size = costs.stream(self.precision, self.axes)
        self.stream = self.at(self.stream_size)
        self.whole_stream = self.precision.weights * self.tokens * shape.hidden
        position_ids = 8 * self.seq if shape.positions == "learned" and self.part.first else 0
        # What forward holds of the part's input, and blocks do not keep: at the first block that is its stream.
        self.received = 0 if self.part.first or self.blocks[0].keeps_stream else self.stream
        self.beside = position_ids + self.received
        # kept_below[i]: what the blocks below block i leave for backward
        stays = {id(block): self.at(block.stays) for block in self.blocks}
        self.kept_below = list(accumulate((stays[id(block)] for block in self.blocks), initial=0))

    def at(self, of: Size) -> int:
        return of.at(self.dims)

    @property
    def told_apart(self) -> list[int]:
        """Blocks among which the highest moments of all blocks are: between them memory changes linearly."""
        last = self.layers - 1
        kinds = [id(block) for block in self.blocks]
        ends = {kinds.index(kind) for kind in kinds} | {last - kinds[::-1].index(kind) for kind in kinds}
        return sorted(ends | ({min(1, last), max(0, last - 1)} if self.has_middle else set()))

    @property
    def has_middle(self) -> bool:
        """Whether a block between the last and the first can hold more than both."""
        return self.layout.ranks > 1 or len(set(map(id, self.blocks))) > 1

    @cached_property
    def units(self) -> Units:
        if not self.sharded:
            return Units(0, 0, 0, 0, 0, False)
        ways, width, own = self.layout.replicas, self.precision.weights, self.own
        block, ends = (ways * share(part, ways) for part in (own.block, own.ends))
        reduced = 4 if self.bytes.autocast else width
        return Units(width * block, width * ends, reduced * block, reduced * ends,
                     width * block // ways if self.bytes.autocast else 0, self.layout.reshard == "never")

    @property
    def undivided_elements(self) -> int:
        """Elements of optimizer state of the tensors that tensor parallelism leaves whole."""
        if self.axes.tp == 1 or self.axes.sequence:
            return 0
        norms = self.all.norms * len(self.rank.layers)
        return self.elements("optimizer", self.all.positions + self.all.final_norm + norms)

    def elements(self, kind: str, part: tuple[Tensor, ...], times: int = 1) -> int:
        """Elements that this rank keeps of a part's weights, gradients or optimizer state."""
        divided = {"weights": ("zero3",), "gradients": ("zero2", "zero3"), "optimizer": ("zero1", "zero2", "zero3")}
        if self.layout.shard not in divided[kind]:
            return times * count(part)
        ways = self.layout.replicas
        return times * share(part, ways) if self.sharded else -(-times * count(part) // ways)

    def all_elements(self, kind: str) -> int:
        # momentum begins as a copy of the gradients, and so keeps what tensor parallelism leaves whole of them
        as_gradients = kind == "gradients" or kind == "optimizer" and self.job.optimizer == "momentum"
        ends = self.all.ends_gradients if as_gradients and not self.sharded else self.all.ends
        return self.elements(kind, ends) + self.elements(kind, self.all.block, len(self.rank.layers))

    @property
    def held(self) -> int:
        """What forward of this part leaves until its backward."""
        left = self.at(self.head.kept) if self.part.last else self.stream
        return self.kept_below[-1] + self.beside + left

    def where(self) -> str:
        names = dict(n="tokens", h="hidden", k="kv hidden", f="ffn", a="heads", V="vocabulary")
        names |= dict(q="heads × head size") if self.shape.q_hidden != self.shape.hidden else {}
        names |= dict(g="kv heads", d="head size") if self.shape.qk_norm else {}
        parts = [f"{letter} {name} {self.dims[letter]:,}" for letter, name in names.items()]
        return " · ".join([*parts, f"t ranks {self.axes.tp}"] if self.axes.tp > 1 else parts)


def computing(job: Job) -> Precision:
    """The precision that operations see: fully_shard gathers 16-bit weights in place of casting under autocast."""
    return PRECISIONS["bf16"] if job.layout.shard == "zero3" and job.bytes.autocast else job.bytes
