"""Operations that networks are put together from: matrix products, RMSNorm, rotary positions."""

from gpucourse.catalog.jobs import Precision
from gpucourse.predict.sizes import NOTHING, size
from gpucourse.predict.tape import Op


def rms_norm(out: str, x: str, rows: str, each: str, width: int, weight: int, ends: tuple[str, ...] = ()) -> list[Op]:
    """RMSNorm of `rows` vectors on a CPU is made of small nodes, in fp32 whatever comes in.

    width, weight: bytes an element of x and of the norm's own weight. ends: what else ends with it.
    """
    made, wide, exact = size(f"{rows} {each}", width), f"{out}: input", size(f"{rows} {each}", 4)
    parts = ("squares", "mean", "scale", "scaled", "result")
    squares, mean, scale, scaled, result = (f"{out}: {part}" for part in parts)
    before = [] if width == 4 else [Op(f"{out}: upcast", wide, exact, uses=(x,))]
    after = [] if width == 4 else [Op(f"{out}: downcast", out, made, uses=(result,), ends=(result, *ends))]
    wide, result = (x, out) if width == 4 else (wide, result)
    return [
        *before,
        Op(squares, squares, exact, uses=(wide,), keeps=(wide,), work=2 * exact),
        Op(mean, mean, size(rows, 4), uses=(squares,)),
        Op(scale, scale, size(rows, 4), uses=(mean,), keeps=(scale,), ends=(squares, mean)),
        Op(scaled, scaled, exact, uses=(wide, scale), keeps=(wide, scale), work=exact),
        Op(f"{out}: weight", result, exact, uses=(scaled,), keeps=(scaled,), gradient=size(each, weight),
           work=exact + size(each, 4 - weight),  # its gradient is summed in fp32
           ends=(scaled, scale, *ends) if width == 4 else (scaled, scale, wide)),
        *after,
    ]


def linear(precision: Precision, out: str, x: str, inner: str, outer: str, bias: bool, cast: bool = True,
           saved: str = "", ends: tuple[str, ...] = (), rows: str = "n", copies: str = "") -> list[Op]:
    """out = x · weight + bias. Autocast first casts the weight, and the input where that is fp32 (`cast`).

    saved: the tensor whose memory is kept for backward, where x is only another name for it. rows: what x has rows for.
    copies: a dimension of weights of this size that are worked with at once.
    """
    width = precision.compute
    made = size(f"{rows} {outer}", width)
    matrix = f"{copies} {inner} {outer}"
    parameters = size(matrix, precision.gradients) + size(outer, precision.gradients if bias else 0)
    if not precision.autocast:
        return [Op(out, out, made, uses=(x,), keeps=(saved or x,), gradient=parameters, ends=ends, kind="product")]
    weight, ops = f"{out} weight as 16-bit", []
    ops.append(Op(weight, weight, size(matrix, width), gradient=parameters))
    if cast:
        narrow = f"{out} input as 16-bit"
        ops.append(Op(narrow, narrow, size(f"{rows} {inner}", width), uses=(x,)))
        x, ends = narrow, (*ends, narrow)
    return [*ops, Op(out, out, made, uses=(x, weight), keeps=(x, weight), ends=ends, kind="product")]


def rotate(width: int, out: str, x: str, outer: str) -> list[Op]:
    """x·cos + half-turned(x)·sin in fp32; nothing is saved but the tables."""
    narrow, exact = size(f"n {outer}", width), size(f"n {outer}", 4)
    extra = NOTHING if width == 4 else exact  # a gradient is made in fp32, then cast
    turned, cosine, sine, wide = (f"{out}: {part}" for part in ("turned", "cosine", "sine", "fp32"))
    half = size(f"n {outer}", width // 2)
    result = out if width == 4 else wide
    ops = [
        Op(turned, turned, narrow, uses=(x,), forward_work=half, work=half),
        # its backward finds the turned half's gradient negated already, and not yet joined with the other half's
        Op(cosine, cosine, exact, uses=(x,), work=extra + half),
        Op(sine, sine, exact, uses=(turned,), work=extra, ends=(turned,)),
        Op(result, result, exact, uses=(cosine, sine), passes=True, ends=(cosine, sine, x)),
    ]
    return ops if width == 4 else [*ops, Op(out, out, narrow, uses=(wide,), ends=(wide,))]
