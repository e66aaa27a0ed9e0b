"""What one block of our networks leaves for backward, by what is recomputed."""

from gpucourse.catalog.shapes import Shape
from gpucourse.errors import unknown
from gpucourse.predict.axes import WHOLE, queries
from gpucourse.predict.sizes import Size, size

WORDS = ("none", "op", "full")
WIDTHS = {"fp32": 4, "bf16": 2}  # of weights and compute alike: without autocast


def saved(shape: Shape, precision: str = "fp32", recompute: str = "none") -> Size:
    """Bytes that one block holds for backward as a formula in n tokens and the widths, its input included.

    recompute: `none`; `op`: matrix products and attention are kept, with the block's input; `full`: the input alone.
    `saved(…).at(dims(shape, n))` is a number of bytes, of eager PyTorch on a CPU with its fused attention kernel.
    """
    for name, value, allowed in (("recompute", recompute, WORDS), ("precision", precision, WIDTHS)):
        if value not in allowed:
            raise unknown(name, value, allowed)
    e = WIDTHS[precision]
    gated = shape.mlp == "swiglu"
    q = queries(shape)
    attention = size(f"n {q}", 2 * e) + size("n k", 2 * e) + size("n a", 4)  # q, k, v, the result; log-sum-exp in fp32
    if recompute == "full":
        return size("n h", e)
    if recompute == "op":
        return size("n h", e) + attention + size("n h", 2 * e) + size("n f", e * (2 if gated else 1))
    if shape.qk_norm:  # an RMSNorm of each head's q and k: input and normalised input in fp32, one number a head
        attention += size(f"n {q}", 4 + 4) + size("n k", 4 + 4) + size("n a", 4) + size("n g", 4)
    return 2 * norm(shape, e) + attention + size("n f", e * (4 if gated else 2))


def norm(shape: Shape, e: int) -> Size:
    """LayerNorm saves its input and two numbers a token; RMSNorm on a CPU works in fp32, and saves its input, the
    normalised input, both in fp32, and one number. The result is saved by the products that use it."""
    result = size("n h", e)
    if shape.norm == "layernorm":
        return result + size("n h", e) + size("n", 2 * e)
    return result + size("n h", 4 + 4) + size("n", 4)


def dims(shape: Shape, tokens: int) -> dict[str, int]:
    """What the letters of `saved` stand for."""
    return WHOLE.values(shape, tokens)
