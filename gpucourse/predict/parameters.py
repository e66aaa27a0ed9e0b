"""How many parameters a shape has, part by part."""

from dataclasses import dataclass
from functools import cache

from gpucourse.catalog.shapes import Shape


@dataclass(frozen=True)
class Parameters:
    """Counts of elements. Of one block: attention, mlp, norms, and their sum `block`. Of the model: the rest.

    embedding: the token table. positions: the learned position table. head: the output matrix, 0 when tied.
    mlp: a block's MLP, or its router and all its experts. dense_blocks keep an ordinary MLP (`dense_mlp`).
    active: what one token passes through; equal to total without experts.
    """

    embedding: int
    positions: int
    attention: int
    mlp: int
    dense_mlp: int
    norms: int
    layers: int
    dense_blocks: int
    final_norm: int
    head: int
    other: int
    idle: int  # of a block: the experts that a token does not visit

    @property
    def block(self) -> int:
        return self.attention + self.mlp + self.norms

    @property
    def blocks(self) -> int:
        return self.layers * self.block + self.dense_blocks * (self.dense_mlp - self.mlp)

    @property
    def total(self) -> int:
        return self.embedding + self.positions + self.blocks + self.final_norm + self.head + self.other

    @property
    def active(self) -> int:
        return self.total - (self.layers - self.dense_blocks) * self.idle


@cache
def parameters(shape: Shape) -> Parameters:
    """Parameters of a shape, exact for the published models of data/models.toml.

    GPT-2: V·h + S·h + L·(12h² + 13h) + 2h. Llama: 2·V·h + L·(2h² + 2h·kv + 3h·f + 2h) + h.
    """
    h, experts = shape.hidden, shape.experts
    norm = h if shape.norm == "rmsnorm" else 2 * h
    dense_mlp = _mlp(shape, shape.ffn)
    expert = _mlp(shape, experts.ffn) if experts else 0
    return Parameters(
        embedding=shape.vocab * h,
        positions=shape.context * h if shape.positions == "learned" else 0,
        attention=_latent_attention(shape) if shape.latent else _attention(shape),
        mlp=h * experts.count + (experts.count + experts.shared) * expert if experts else dense_mlp,
        dense_mlp=dense_mlp,
        norms=norm if shape.parallel else 2 * norm,
        layers=shape.layers,
        dense_blocks=experts.dense_layers if experts else 0,
        final_norm=norm,
        head=0 if shape.tied else shape.vocab * h,
        other=shape.other,
        idle=(experts.count - experts.per_token) * expert if experts else 0,
    )


def _attention(shape: Shape) -> int:
    h, q, kv = shape.hidden, shape.heads * shape.head_size, shape.kv_hidden
    biases = (q + 2 * kv if shape.bias or shape.qkv_bias else 0) + (h if shape.bias else 0)
    return h * q + 2 * h * kv + q * h + biases + (2 * shape.head_size if shape.qk_norm else 0)


def _latent_attention(shape: Shape) -> int:
    """DeepSeek-V2's MLA (arXiv 2405.04434, section 2.1): down, norm and up for queries and for K and V, then out."""
    h, a, d, low = shape.hidden, shape.heads, shape.head_size, shape.latent
    queries = h * low.q_rank + low.q_rank + low.q_rank * a * (d + low.rope_size)
    keys_values = h * (low.kv_rank + low.rope_size) + low.kv_rank + low.kv_rank * a * (d + low.value_size)
    return queries + keys_values + a * low.value_size * h


def _mlp(shape: Shape, width: int) -> int:
    matrices = 3 if shape.mlp == "swiglu" else 2
    biases = (matrices - 1) * width + shape.hidden if shape.bias else 0
    return matrices * shape.hidden * width + biases
