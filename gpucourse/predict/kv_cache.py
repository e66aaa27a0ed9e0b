"""The KV cache: bytes a token, blocks of a paged cache, and how many requests it holds."""

from math import ceil

from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive, positive_int, unknown

KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}  # an element, without its scale


def kv_bytes_per_token(shape: Shape, kv_dtype: str = "bf16", tensor: int = 1) -> float:
    """Bytes that one token of one request keeps on each of `tensor` GPUs.

    2·L·kv_heads·d·bytes, the heads divided among the GPUs; fewer kv_heads than GPUs are repeated. With latent
    attention L·(kv_rank + rope_size)·bytes, on every GPU (DeepSeek-V2, arXiv 2405.04434, table 1).
    """
    if kv_dtype not in KV_BYTES:
        raise unknown("kv-dtype", kv_dtype, KV_BYTES)
    divided(shape, tensor)
    if shape.latent:
        return shape.layers * (shape.latent.kv_rank + shape.latent.rope_size) * KV_BYTES[kv_dtype]
    heads = max(1, shape.kv_heads // tensor)
    return 2 * shape.layers * heads * shape.head_size * KV_BYTES[kv_dtype]


def divided(shape: Shape, ranks: int, axis: str = "tensor parallel") -> int:
    """`ranks` where attention's heads can be split that many ways, or BadInput naming the ways that work."""
    ways = [n for n in range(1, shape.heads + 1)
            if shape.heads % n == 0 and (shape.kv_heads % n == 0 or n % shape.kv_heads == 0)]
    if positive_int(f"{axis} GPUs", ranks) not in ways:
        raise BadInput(f"{axis} is {ranks}; {shape.name} has {shape.heads} heads and {shape.kv_heads} kv heads: "
                       f"use one of {', '.join(map(str, ways))}")
    return ranks


def blocks(kv_bytes: float, bytes_per_token: float, block_size: int = 16) -> int:
    """Whole blocks of `block_size` tokens that fit in `kv_bytes` (paged attention, arXiv 2309.06180)."""
    block_bytes = positive_int("block-size", block_size) * positive("bytes a token", bytes_per_token)
    return int(max(0.0, kv_bytes) // block_bytes)


def concurrency(tokens: int, length: int) -> float:
    """How many requests of `length` tokens a cache of `tokens` holds; a server refuses a length for which it is < 1."""
    return tokens / positive_int("context", length)


def admitted(tokens: int, length: int, block_size: int = 1) -> int:
    """Requests that can run without pre-emption until each is `length` tokens long.

    With a block size, a request's last block counts in full, as in a paged cache.
    """
    each = ceil(positive_int("length", length) / positive_int("block-size", block_size))
    return tokens // block_size // each
