"""The time of a prefill and of a decode step: the roofline, with the KV cache read beside the weights."""

from gpucourse.catalog.shapes import Shape
from gpucourse.errors import positive, positive_int
from gpucourse.predict.compute import flops_per_token
from gpucourse.predict.kv_cache import kv_bytes_per_token
from gpucourse.predict.parameters import parameters
from gpucourse.predict.serving import weight_bytes


def prefill_seconds(shape: Shape, tokens: int, flops: float, tensor: int = 1) -> float:
    """Seconds to read a prompt of `tokens` at `flops` FLOP/s a GPU: compute-bound, the forward third of training.

    2·(N − E) + 2·L·h·s a token, attention causal.
    """
    forward = flops_per_token(shape, tokens, "causal").total / 3
    return tokens * forward / (positive("flops", flops) * positive_int("tensor", tensor))


def decode_seconds(shape: Shape, batch: int, context: int, flops: float, bandwidth: float, kv_dtype: str = "bf16",
                   weights: str = "bf16", tensor: int = 1) -> float:
    """Seconds of one decode step of `batch` requests that each hold `context` tokens.

    b·KV / bandwidth + max(2·b·N / FLOP/s, weight bytes / bandwidth): each GPU reads its part of the weights once for
    the whole batch, and each request's cache. flops and bandwidth (bytes/s) are of one GPU.
    """
    requests = positive_int("batch", batch)
    cache = requests * positive_int("context", context) * kv_bytes_per_token(shape, kv_dtype, tensor)
    count = parameters(shape)
    computing = 2 * requests * count.active / tensor / positive("flops", flops)
    reading = weight_bytes(shape, weights, tensor) * _share_read(shape, requests) / positive("bandwidth", bandwidth)
    return cache / bandwidth + max(computing, reading)


def _share_read(shape: Shape, tokens: int) -> float:
    """The share of the parameters that a batch touches: all, or with experts those that uniform routing hits."""
    if not shape.experts:
        return 1.0
    count, used = parameters(shape), shape.experts.per_token / shape.experts.count
    if used == 1:
        return 1.0
    routed = (count.layers - count.dense_blocks) * count.idle / (1 - used)
    return 1 - routed * (1 - used) ** tokens / count.total
