"""The shape of a decoder-only transformer: what its memory, traffic and compute follow from."""

from dataclasses import dataclass, replace

from gpucourse.errors import BadInput, positive_int, unknown

NORMS = ("layernorm", "rmsnorm")
MLPS = ("gelu", "swiglu")
POSITIONS = ("learned", "rope")


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP: each token visits `per_token` of `count` experts of width `ffn`.

    shared: experts that every token visits. dense_layers: blocks at the bottom that keep an ordinary MLP.
    """

    count: int
    per_token: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0

    def __post_init__(self):
        for field in ("count", "per_token", "ffn"):
            positive_int(f"experts: {field}", getattr(self, field))
        if self.per_token > self.count:
            raise BadInput(f"experts: per_token is {self.per_token}; there are only {self.count}")


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): K and V are expanded from one vector a token.

    That vector has kv_rank + rope_size elements. q_rank: width that queries pass through. value_size: a head's V.
    """

    kv_rank: int
    q_rank: int
    rope_size: int
    value_size: int

    def __post_init__(self):
        for field in ("kv_rank", "q_rank", "rope_size", "value_size"):
            positive_int(f"latent: {field}", getattr(self, field))


@dataclass(frozen=True)
class Shape:
    """Sizes are counts of elements. `kv_heads < heads` is grouped-query attention; `bias` is on every linear layer.

    head_dim: size of a head where it is not hidden / heads; under latent attention, its part without rotation.
    qkv_bias: biases on Q, K and V only. qk_norm: an RMSNorm on each head's Q and K. parallel: attention and MLP side by
    side on one norm. other: parameters that the pattern does not name (a pooler, the head's bias).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    norm: str = "layernorm"
    mlp: str = "gelu"
    positions: str = "learned"
    bias: bool = True
    tied: bool = True
    head_dim: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    parallel: bool = False
    other: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    source: str = ""

    def __post_init__(self):
        for field in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "context"):
            positive_int(f"{self.name}: {field}", getattr(self, field))
        if self.head_dim:
            positive_int(f"{self.name}: head_dim", self.head_dim)
        elif self.hidden % self.heads:
            raise BadInput(f"{self.name}: {self.heads} heads do not divide hidden {self.hidden}")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.name}: {self.kv_heads} kv_heads do not divide {self.heads} heads")
        if self.experts and not 0 <= self.experts.dense_layers < self.layers:
            raise BadInput(f"{self.name}: dense_layers is {self.experts.dense_layers}; at least one of {self.layers} "
                           "layers must have experts")
        for field, allowed in (("norm", NORMS), ("mlp", MLPS), ("positions", POSITIONS)):
            if getattr(self, field) not in allowed:
                raise unknown(f"{self.name}: {field}", getattr(self, field), allowed)

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def q_hidden(self) -> int:
        """Width of Q, and of what attention gives: heads × head size."""
        return self.heads * self.head_size

    @property
    def kv_hidden(self) -> int:
        """Width of K, and of V: kv_heads × head size."""
        return self.kv_heads * self.head_size

    def but(self, **changes) -> "Shape":
        """The same shape with some sizes changed."""
        return replace(self, **changes)


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 50257, context: int = 1024, **more) -> Shape:
    """A GPT-2 style shape: LayerNorm, GELU of width 4·hidden, learned positions, biases, tied embeddings."""
    return Shape(name, layers, hidden, heads, heads, more.pop("ffn", 4 * hidden), vocab, context, **more)


def llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 32000,
          context: int = 4096, **more) -> Shape:
    """A Llama style shape: RMSNorm, SwiGLU, rotary positions, no biases, untied embeddings."""
    style = dict(norm="rmsnorm", mlp="swiglu", positions="rope", bias=False, tied=False) | more
    return Shape(name, layers, hidden, heads, kv_heads, ffn, vocab, context, **style)
