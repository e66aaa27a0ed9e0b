"""What a server of one model holds on each GPU: weights, a reserve, and a KV cache in what is left."""

from dataclasses import dataclass

from gpucourse.catalog.gpus import Gpu
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.units import GiB
from gpucourse.errors import BadInput, positive, positive_int, unknown
from gpucourse.predict.kv_cache import admitted, blocks, concurrency, divided, kv_bytes_per_token
from gpucourse.predict.parameters import parameters

# Bits a weight. nf4 keeps one fp32 scale for 64 weights; double quantisation keeps that in 0.127 bits a weight
# (QLoRA, arXiv 2305.14314, section 3). Only the blocks are quantised: embedding, head and norms stay bf16.
WEIGHT_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "nf4": 4.5, "nf4-double": 4.127}

# Activations of the largest prefill, the CUDA context, graphs: what the logs of vllm-project/vllm#10517 leave for them.
RESERVE_GIB = (2.4, 3.4)


def weight_bytes(shape: Shape, weights: str = "bf16", tensor: int = 1) -> float:
    """Bytes of the weights on each of `tensor` GPUs, the few norms' repetition left out."""
    if weights not in WEIGHT_BITS:
        raise unknown("weights", weights, WEIGHT_BITS)
    count, bits = parameters(shape), WEIGHT_BITS[weights]
    outside = 16 if bits < 16 else bits
    return (count.blocks * bits + (count.total - count.blocks) * outside) / 8 / divided(shape, tensor)


@dataclass(frozen=True)
class ServePlan:
    """Of each GPU. `kv_bytes` is what the weights and the reserve leave; `fits` is yes, no or uncertain."""

    weight_bytes: float
    reserve_bytes: float
    kv_bytes_per_token: float
    kv_bytes: float
    kv_blocks: int
    kv_tokens: int
    max_concurrency: float
    fits: str


def plan(shape: Shape, on: Gpu, context: int, wanted: int = 1, tensor: int = 1, kv_dtype: str = "bf16",
         weights: str = "bf16", utilization: float = 0.9, block_size: int = 16,
         reserve_gib: float | None = None) -> ServePlan:
    """Whether `wanted` requests of `context` tokens each fit at once, and what the cache holds.

    KV bytes = utilization × the capacity that torch reports − weights − reserve. Without a reserve of your own the
    figures are for the middle of the usual range, and the answer is uncertain where its ends disagree.
    """
    if positive_int("context", context) > shape.context:
        raise BadInput(f"context is {context}; {shape.name} takes at most {shape.context} tokens")
    if not 0 < positive("utilization", utilization) <= 1:
        raise BadInput(f"utilization is {utilization}; it must be above 0 and at most 1")
    positive_int("concurrency", wanted)
    low, high = RESERVE_GIB if reserve_gib is None else 2 * (positive("reserve-gib", reserve_gib),)
    held, each = weight_bytes(shape, weights, tensor), kv_bytes_per_token(shape, kv_dtype, tensor)

    def room(reserve: float) -> float:
        return max(0.0, utilization * on.capacity - held - reserve * GiB)

    def enough(reserve: float) -> bool:
        return admitted(blocks(room(reserve), each, block_size) * block_size, context, block_size) >= wanted

    middle = (low + high) / 2
    count = blocks(room(middle), each, block_size)
    return ServePlan(
        weight_bytes=held, reserve_bytes=middle * GiB, kv_bytes_per_token=each, kv_bytes=room(middle), kv_blocks=count,
        kv_tokens=count * block_size, max_concurrency=concurrency(count * block_size, context),
        fits="yes" if enough(high) else "uncertain" if enough(low) else "no",
    )
