"""Parts of 06.1, 06.6, 06.8: the bytes of a token, the least time of a piece of work, what a cache must have gained."""

from gpucourse.catalog import GiB, KiB, gpu, published, shape
from gpucourse.exercises.kinds import Misconception, Quantity
from gpucourse.predict.kv_cache import kv_bytes_per_token
from gpucourse.predict.parameters import parameters


def each(model: str, tensor: int = 1, heads: int = 0) -> float:
    """KiB a token on each GPU; `heads` in place of the model's kv heads."""
    what = shape(model)
    return kv_bytes_per_token(what.but(kv_heads=heads) if heads else what, tensor=tensor) / KiB


FIFTY = 50 * 2000 * kv_bytes_per_token(shape("llama-3.1-8b"))
BYTES = {
    "llama-2-7b, KiB a token": Quantity(expected=lambda: each("llama-2-7b"), unit="KiB", within=1e-3, misconceptions=(
        Misconception(lambda: each("llama-2-7b") / 2, "Keys *and* values are kept."),
        Misconception(lambda: each("llama-2-7b") / 32, "That is one layer. Each has keys and values of its own."))),
    "llama-3.1-8b, KiB a token": Quantity(
        expected=lambda: each("llama-3.1-8b"), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("llama-3.1-8b", heads=32), "That counts the query heads. Queries are not kept: "
                                                                  "how many heads have keys?"),
            Misconception(lambda: each("llama-3.1-8b") / 2, "Keys *and* values are kept."))),
    "qwen3-235b on 4 GPUs, KiB a token and GPU": Quantity(
        expected=lambda: each("qwen3-235b", 4), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("qwen3-235b"), "That is all GPUs together. The heads are divided among them."),
            Misconception(lambda: each("qwen3-235b", 4, heads=64), "That counts the query heads."))),
    "qwen3-235b on 8 GPUs, KiB a token and GPU": Quantity(
        expected=lambda: each("qwen3-235b", 8), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("qwen3-235b") / 8, "That is half a head a GPU. A head is not cut: with more "
                                                          "GPUs than kv heads, what do the others hold?"),)),
    "llama-3.1-8b, 50 requests of 2,000 tokens, GiB": Quantity(
        expected=FIFTY / GiB, unit="GiB", within=1e-3, misconceptions=(
            Misconception(FIFTY / 1e9, "That is GB: a GiB is 2³⁰ bytes."),
            Misconception(FIFTY / 50 / GiB, "That is one request."))),
}
MODEL, CARD = shape("llama-3.1-8b"), gpu("h100-sxm")
CACHE = next(float(row["value"]) for row in published("serving")
             if (row["case"], row["what"], row["quantity"]) == ("A16", "longest request 29000", "cache"))


def request_gib(tokens: int) -> float:
    return tokens * kv_bytes_per_token(MODEL) / GiB


FREED = {
    "one of 29,000, GiB": Quantity(expected=request_gib(29_000), unit="GiB", misconceptions=(
        Misconception(CACHE, "That is what the cache had. What would one request have needed?"),
        Misconception(request_gib(29_000) / 2, "Keys *and* values are kept."),
        Misconception(request_gib(29_000) * 2**30 / 1e9, "That is GB: a GiB is 2³⁰ bytes."))),
    "grown by at least, GiB": Quantity(expected=request_gib(45_000) - CACHE, unit="GiB", misconceptions=(
        Misconception(request_gib(45_000), "That is the whole cache. How much of it was there at 29,000?"),
        Misconception(request_gib(45_000) - request_gib(29_000), "At 29,000 the cache held less than one request: take "
                                                                 "off what it had."))),
}
WORK = {  # prefill: tokens of one prompt; decode: requests, tokens that each holds
    "A": ("decode", 1, 1000), "B": ("prefill", 4000, 0), "C": ("decode", 64, 2000), "D": ("decode", 1000, 100),
    "E": ("decode", 1000, 2000), "F": ("prefill", 100, 0),
}


def parts_of(kind: str, many: int, context: int) -> tuple[float, float, float, float]:
    """FLOPs of the products with weights, FLOPs of attention, bytes of weights, bytes of caches."""
    count, cache = parameters(MODEL).total, kv_bytes_per_token(MODEL)
    seen = context if kind == "decode" else many / 2  # by a token, on average
    return (2 * many * count, 4 * many * MODEL.layers * MODEL.hidden * seen, 2 * count,
            cache * (many * context if kind == "decode" else many))


def least_ms(name: str) -> Quantity:
    """The longer of both floors, and what is left out when another time is given."""
    products, attention, weights, caches = (part * 1e3 for part in parts_of(*WORK[name]))
    peak, bandwidth, many = CARD.peak("bf16"), CARD.bandwidth, WORK[name][1]
    compute, memory = (products + attention) / peak, (weights + caches) / bandwidth
    if compute > memory:
        wrong = {"That is its bytes at the bandwidth. How long do its FLOPs take?": memory,
                 "That leaves out what attention does with keys and values.": products / peak}
    else:
        wrong = {"That is its FLOPs at the peak. How long do its bytes take?": compute,
                 "That reads the weights alone. Each request reads its own cache besides.": weights / bandwidth,
                 "That reads the weights once for each token. One pass reads them once for all.":
                     (many * weights + caches) / bandwidth}
    right = max(compute, memory)
    return Quantity(expected=right, unit="ms", within=0.02, misconceptions=tuple(
        Misconception(ms, says) for says, ms in wrong.items() if abs(ms / right - 1) > 0.03))
