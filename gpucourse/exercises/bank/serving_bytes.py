"""Parts of 06.1 and 06.6: the bytes of a token, and the limit that a piece of work meets."""

from gpucourse.catalog import GiB, KiB, gpu, shape
from gpucourse.exercises.kinds import Misconception, Pick, Quantity
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
WORK = {  # prefill: tokens of one prompt; decode: requests, tokens that each holds
    "A": ("decode", 1, 1000), "B": ("prefill", 4000, 0), "C": ("decode", 64, 2000), "D": ("decode", 1000, 100),
    "E": ("decode", 1000, 2000), "F": ("prefill", 100, 0),
}


def intensity(kind: str, many: int, context: int) -> float:
    """FLOPs a byte of a prefill of `many` tokens or of a decode step of `many` requests, weights and cache in bf16."""
    keys = context if kind == "decode" else many / 2  # that a token sees, on average
    flops = many * (2 * parameters(MODEL).total + 4 * MODEL.layers * MODEL.hidden * keys)
    cache = kv_bytes_per_token(MODEL) * (many * context if kind == "decode" else many)
    return flops / (2 * parameters(MODEL).total + cache)


def bound(name: str) -> str:
    return "compute" if intensity(*WORK[name]) > CARD.peak("bf16") / CARD.bandwidth else "memory"


LIMITS = {"compute": "That needs more FLOPs for each byte than this has. Which bytes are read for these tokens, and "
                     "how many tokens share them?",
          "memory": "Here enough tokens share each byte of weights, and each brings little cache of its own: the FLOPs "
                    "a byte pass the card's turn."}


def bound_part(name: str) -> Pick:
    return Pick(options={key: key for key in LIMITS}, right=lambda: bound(name), why=LIMITS)
