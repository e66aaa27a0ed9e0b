"""Decoding with a KV cache: every token passes through the network once.

Sizes in comments: B sequences, T new tokens, S tokens of room, K kv heads, D head size, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpucourse.errors import BadInput, positive_int
from gpucourse.models.transformer import Attention, Transformer, rotate


@dataclass
class Cache:
    """Keys and values of `length` tokens, with room for more: for each layer two tensors [B, K, S, D]."""

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0

    @property
    def room(self) -> int:
        """Tokens that the cache can hold, S."""
        return self.keys[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers, also of what is not filled yet."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


def cache(model: Transformer, batch: int, tokens: int) -> Cache:
    """An empty cache for `batch` sequences of up to `tokens` tokens, in the dtype and on the device of the weights."""
    shape, weight = model.shape, model.head.weight
    if positive_int("tokens", tokens) > shape.context:
        raise BadInput(f"tokens is {tokens}; {shape.name} takes at most {shape.context}")
    size = (positive_int("batch", batch), shape.kv_heads, tokens, shape.head_size)

    def per_layer() -> list[Tensor]:
        return [torch.zeros(size, dtype=weight.dtype, device=weight.device) for _ in range(shape.layers)]

    return Cache(per_layer(), per_layer())


def attend(attention: Attention, x: Tensor, rotary: tuple[Tensor, Tensor] | None, keys: Tensor, values: Tensor,
           past: int) -> Tensor:
    """Attention of T new tokens x [B, T, H] over `past` cached ones and themselves; their keys and values are stored.

    keys, values: [B, K, S, D], one layer's. rotary: tables of the new tokens' own positions, [T, D] each.
    """
    B, T, _ = x.shape
    q, k, v = attention.project(x)  # [B, heads, T, D]
    if rotary is not None:
        q, k = rotate(q, *rotary), rotate(k, *rotary)
    keys[:, :, past:past + T], values[:, :, past:past + T] = k, v
    # One token sees everything. Of several, token t sees `past` + t + 1: is_causal would count from the first key.
    mask = None if T == 1 else torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
    y = F.scaled_dot_product_attention(q, keys[:, :, :past + T], values[:, :, :past + T], attn_mask=mask,
                                       enable_gqa=k.shape[1] != q.shape[1])
    return attention.out(y.transpose(1, 2).reshape(B, T, -1))


@torch.no_grad()
def step(model: Transformer, tokens: Tensor, cached: Cache) -> Tensor:
    """Pass new tokens [B, T] through the model and store them: a prefill of a prompt, or a decode step where T is 1.

    Returns the logits after the last of them, [B, V].
    """
    past, T = cached.length, tokens.shape[1]
    if past + T > cached.room:
        raise BadInput(f"the cache has room for {cached.room} tokens; {past} are stored and {T} more are given")
    x, rotary = model.embedding(tokens), None  # [B, T, H]
    if model.positions is not None:
        x = x + model.positions(torch.arange(past, past + T, device=tokens.device))
    else:
        rotary = model.cos[past:past + T], model.sin[past:past + T]
    for block, keys, values in zip(model.blocks, cached.keys, cached.values, strict=True):
        x = x + attend(block.attention, block.attention_norm(x), rotary, keys, values, past)
        x = x + block.mlp(block.mlp_norm(x))
    cached.length += T
    return model.head(model.norm(x[:, -1]))


@torch.no_grad()
def generate(model: Transformer, prompt: Tensor, new: int, cached: Cache | None = None) -> Tensor:
    """The `new` most likely tokens after prompt [B, T], as [B, new]; without a cache all is computed again for each."""
    positive_int("new", new)
    tokens, said = prompt, []
    for _ in range(new):
        logits = model(tokens)[:, -1] if cached is None else step(model, tokens, cached)
        said.append(logits.argmax(-1, keepdim=True))  # [B, 1]
        tokens = torch.cat([tokens, said[-1]], dim=1) if cached is None else said[-1]
    return torch.cat(said, dim=1)
