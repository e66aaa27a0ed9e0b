"""The shape of a decoder-only transformer: what its memory, traffic and compute follow from."""

from dataclasses import dataclass, replace

from gpucourse.errors import BadInput, positive_int, unknown

NORMS = ("layernorm", "rmsnorm")
MLPS = ("gelu", "swiglu")
POSITIONS = ("learned", "rope")


@dataclass(frozen=True)
class Shape:
    """Sizes are counts of elements. `kv_heads < heads` is grouped-query attention; `bias` is on every linear layer."""

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
    source: str = ""

    def __post_init__(self):
        for field in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "context"):
            positive_int(f"{self.name}: {field}", getattr(self, field))
        if self.hidden % self.heads:
            raise BadInput(f"{self.name}: {self.heads} heads do not divide hidden {self.hidden}")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.name}: {self.kv_heads} kv_heads do not divide {self.heads} heads")
        for field, allowed in (("norm", NORMS), ("mlp", MLPS), ("positions", POSITIONS)):
            if getattr(self, field) not in allowed:
                raise unknown(f"{self.name}: {field}", getattr(self, field), allowed)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

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
