"""How a job is laid out over ranks: how many along each axis, and what each axis divides."""

from dataclasses import dataclass, replace

from gpucourse.errors import BadInput, positive_int, unknown

SHARDS = ("none", "zero1", "zero2", "zero3")
RESHARDS = ("always", "never")
REDUCES = ("always", "last")
PIPELINES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipe")


@dataclass(frozen=True)
class Layout:
    """Ranks along each axis; they multiply, but for ep, whose ranks are data-parallel ones.

    dp: copies of the model that each see other sequences. shard: what the copies divide among them: nothing (DDP),
    the optimizer's state (zero1), the gradients too (zero2), the weights too (zero3: FSDP, one unit a block).
    reshard: whether a unit's weights are given back after its forward. bucket_view: DDP's gradients lie in its buckets.
    tp: ranks that divide each layer. sequence_parallel: also norms and residual stream, along the sequence.
    vocab_parallel_loss: the loss is computed from logits that stay divided.
    pp: stages, played by `schedule` with `chunks` stages a rank; Job.accumulate is its number of micro-batches.
    cp: ranks that divide the sequence. ep: ranks that divide the experts.
    reduce: whether FSDP shares gradients out after every micro-batch, or only after the last; until then they are whole
    on every rank. In a pipeline it is always after the last: torch.distributed.pipelining's stages see to that.
    """

    dp: int = 1
    shard: str = "none"
    reshard: str = "always"
    bucket_view: bool = True
    tp: int = 1
    sequence_parallel: bool = False
    vocab_parallel_loss: bool = False
    pp: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    cp: int = 1
    ep: int = 1
    reduce: str = "always"

    def __post_init__(self):
        for field in ("dp", "tp", "pp", "chunks", "cp", "ep"):
            positive_int(field, getattr(self, field))
        for field, allowed in (("shard", SHARDS), ("reshard", RESHARDS), ("schedule", PIPELINES),
                               ("reduce", REDUCES)):
            if getattr(self, field) not in allowed:
                raise unknown(field, getattr(self, field), allowed)
        if self.shard != "none" and self.replicas == 1:
            raise BadInput(f"shard is {self.shard} with dp 1: there is nobody to share with; set dp to at least 2")
        if self.reduce == "last" and self.shard != "zero3":
            raise BadInput(f"reduce is last with shard {self.shard}; it is about FSDP's gradients: set shard to zero3")
        for field in ("sequence_parallel", "vocab_parallel_loss"):
            if getattr(self, field) and self.tp == 1:
                raise BadInput(f"{field.replace('_', '-')} is set with tp 1; it divides among tensor-parallel ranks: "
                               "set tp to at least 2")
        if self.chunks > 1 and self.pp == 1:
            raise BadInput(f"chunks is {self.chunks} with pp 1; they are stages of a pipeline: set pp to at least 2")
        if self.dp % self.ep:
            raise BadInput(f"ep is {self.ep}; experts are divided among data-parallel ranks: use a divisor of "
                           f"dp {self.dp}")

    @property
    def replicas(self) -> int:
        """Ranks that work with the same weights on other tokens, and so add up their gradients."""
        return self.dp * self.cp

    @property
    def in_buckets(self) -> bool:
        """Whether DDP adds up the gradients; ZeRO-1 leaves that to it and divides only the optimizer's state."""
        return self.replicas > 1 and self.shard in ("none", "zero1")

    @property
    def staged(self) -> bool:
        """Whether a pipeline's stages have sharded weights. torch.distributed.pipelining then keeps what a backward has
        gathered, and shares gradients out once, after the last micro-batch, whatever `reduce` says."""
        return self.pp > 1 and self.shard == "zero3"

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def stages(self) -> int:
        return self.pp * self.chunks

    def but(self, **changes) -> "Layout":
        """The same layout with some choices changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        data = {"none": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "FSDP"}[self.shard]
        data += {"none": "" if self.bucket_view else " without bucket views",
                 "zero3": " kept after forward" * (self.reshard == "never")
                 + " reduced after the last micro-batch" * (self.staged or self.reduce == "last")}.get(self.shard, "")
        tensor = "TP" + "+SP" * self.sequence_parallel
        stages = f"PP {self.pp} ({self.schedule}" + f", {self.chunks} chunks" * (self.chunks > 1) + ")"
        parts = [f"{data} {self.dp}" * (self.dp > 1 or self.shard != "none"),
                 f"{tensor} {self.tp}" * (self.tp > 1) + " with a vocabulary-parallel loss" * self.vocab_parallel_loss,
                 stages * (self.pp > 1), f"CP {self.cp}" * (self.cp > 1), f"EP {self.ep}" * (self.ep > 1)]
        return " × ".join(filter(None, parts)) or "one device"
