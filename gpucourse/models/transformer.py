"""A decoder-only transformer, GPT-2 or Llama style by its shape.

Sizes in comments: B sequences, T tokens, H hidden, K kv hidden, A heads, D head size, F ffn width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucourse.catalog import Shape
from gpucourse.catalog.jobs import recompute_of_layers
from gpucourse.catalog.stages import Part
from gpucourse.errors import BadInput
from gpucourse.models.chunked import chunked_loss
from gpucourse.models.recompute import recomputed


def norm(shape: Shape) -> nn.Module:
    return nn.LayerNorm(shape.hidden) if shape.norm == "layernorm" else nn.RMSNorm(shape.hidden, eps=1e-5)


def rotary_tables(seq: int, head_size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """cos and sin of position × frequency, each [T, D]."""
    exact = dict(dtype=torch.float32)  # bf16 cannot tell position 257 from 256
    frequency = base ** (-torch.arange(0, head_size, 2, **exact) / head_size)  # [D/2]
    angle = torch.outer(torch.arange(seq, **exact), frequency).repeat(1, 2)  # [T, D]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: x [B, A, T, D], tables [T or more, D] in fp32, as is the arithmetic; the result is like x."""
    cos, sin = cos[:x.shape[-2]], sin[:x.shape[-2]]
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: q [B, A, T, D], k and v [B, K/D, T, D] → [B, A, T, D]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])


class Attention(nn.Module):
    """recompute: keep only q, k and v of attention proper, and run it again during backward."""

    def __init__(self, shape: Shape, recompute: bool = False):
        super().__init__()
        self.attend = recomputed(attend, "full", preserve_rng_state=False) if recompute else attend
        self.head_size = shape.head_size
        bias = shape.bias or shape.qkv_bias
        self.q = nn.Linear(shape.hidden, shape.q_hidden, bias=bias)
        self.k = nn.Linear(shape.hidden, shape.kv_hidden, bias=bias)
        self.v = nn.Linear(shape.hidden, shape.kv_hidden, bias=bias)
        self.out = nn.Linear(shape.q_hidden, shape.hidden, bias=shape.bias)
        self.q_norm, self.k_norm = (nn.RMSNorm(shape.head_size, eps=1e-6) if shape.qk_norm else None for _ in "qk")

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of x [B, T, H], each [B, A, T, D]; not rotated yet."""
        B, T, _ = x.shape
        q, k, v = (linear(x).view(B, T, -1, self.head_size) for linear in (self.q, self.k, self.v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.project(x)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        y = self.attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


class GeluMlp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class SwigluMlp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=shape.bias)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). recompute: as catalog.Job has it, but for `layer-K`."""

    def __init__(self, shape: Shape, recompute: str = "none"):
        super().__init__()
        self.attention_norm = norm(shape)
        self.attention = Attention(shape, recompute == "attention")
        self.mlp_norm = norm(shape)
        self.mlp = GeluMlp(shape) if shape.mlp == "gelu" else SwigluMlp(shape)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Tokens [B, T] int64 → logits [B, T, V].

    recompute: `none` keeps what each block saves for backward; `full` keeps only each block's input and runs the
    block's forward again during backward (torch.utils.checkpoint, non-reentrant); `layer-K` does so every K-th block;
    `op` keeps the results of products and of attention besides, `op-2` of every second product; `attention` runs only
    attention proper again.
    part: the layers to have, as one stage of a pipeline; a stage that is not the first takes [B, T, H] in place of
    tokens, one that is not the last gives [B, T, H] in place of logits.
    """

    def __init__(self, shape: Shape, recompute: str = "none", part: Part | None = None):
        super().__init__()
        lacking = [name for name in ("experts", "latent", "parallel") if getattr(shape, name)]
        if lacking:
            raise BadInput(f"{shape.name} has {', '.join(lacking)}: no network here has that; predict.memory covers it")
        self.shape = shape
        self.part = part = part or Part(range(shape.layers))
        self.recompute = recompute_of_layers(recompute, shape.layers)[part.layers.start:part.layers.stop]
        learned = part.first and shape.positions == "learned"
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if part.first else None
        self.positions = nn.Embedding(shape.context, shape.hidden) if learned else None
        self.blocks = nn.ModuleList(Block(shape, word) for word in self.recompute)
        self.norm = norm(shape) if part.last else None
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if part.last else None
        self.tie()
        if shape.positions == "rope":
            cos, sin = rotary_tables(shape.context, shape.head_size)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.apply(self._initialise)

    def tie(self) -> None:
        """Make head and embedding one tensor where the shape says so; moving a model off `meta` makes them two."""
        if self.shape.tied and self.part.whole:
            self.head.weight = self.embedding.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, parts: int = 1) -> Tensor:
        """With targets [B, T], not the logits but their mean cross-entropy, computed in `parts` parts."""
        x = self.embedding(tokens) if self.embedding is not None else tokens  # [B, T, H]
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        rotary = (self.cos, self.sin) if self.shape.positions == "rope" else None
        for block, word in zip(self.blocks, self.recompute, strict=True):
            whole = word not in ("none", "attention") and self.training
            x = (recomputed(block, word, preserve_rng_state=False) if whole else block)(x, rotary)
        if self.head is None:
            return x
        if targets is None:
            return self.head(self.norm(x))
        return chunked_loss(self.norm(x).flatten(0, 1), self.head, targets.flatten(), parts)
