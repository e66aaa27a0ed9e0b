"""The operations of our transformer, as autograd sees them: one list a block, one list for the head and the loss.

Sizes are in bytes over n tokens, hidden h, kv hidden k, ffn f, heads a, vocabulary V. The rules are PyTorch's eager
ones on a CPU: what each node saves is read off its derivative formula, and each list is held against the dry run.
"""

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict.sizes import NOTHING, Size, size
from gpucourse.predict.tape import Op

STREAM = "x0"  # the residual stream as a list of operations finds it
WIDE_LOGITS = "logits as fp32"


def block(shape: Shape, precision: Precision) -> list[Op]:
    """x + attention(norm(x)), then x + mlp(norm(x)); models/transformer.py line by line."""
    attend, normed = attention(shape, precision), "attention norm"
    first = [*norm(shape, precision, normed, STREAM), *attend,
             *residual(precision, "attention added", STREAM, "attention out")]
    feed, normed = mlp(shape, precision), "mlp norm"
    return first + [*norm(shape, precision, normed, "attention added"), *feed,
                    *residual(precision, "mlp added", "attention added", "mlp down")]


def head(shape: Shape, precision: Precision, widened: bool = False) -> tuple[list[Op], list[Op]]:
    """Final norm and output matrix; and, outside of the model, cross-entropy. Logits live until the loss is known.

    Autocast computes the loss in fp32 from 16-bit logits that the training loop holds; where the model itself hands
    out fp32 (`widened`), nobody does.
    """
    ops = [*norm(shape, precision, "final norm", STREAM),
           *linear(precision, "logits", "final norm", "h", "V", bias=False, ends=("final norm",))]
    given, width = "logits", 4 if precision.autocast or widened else precision.weights
    loss = []
    if width != precision.compute:
        given = WIDE_LOGITS
        loss.append(Op(given, given, size("n V", 4), uses=("logits",), ends=("logits",) if widened else ()))
    return ops, [
        *loss,
        Op("log-softmax", "log-softmax", size("n V", width), uses=(given,), keeps=("log-softmax",)),
        Op("loss", "loss", Size({(): 4}), uses=("log-softmax",), keeps=("log-softmax",), ends=("logits", given)),
    ]


def norm(shape: Shape, precision: Precision, out: str, x: str) -> list[Op]:
    """LayerNorm is one node. RMSNorm on a CPU is made of small ones, in fp32 whatever comes in."""
    width = precision.weights
    if shape.norm == "layernorm":
        return [Op(out, out, size("n h", width), uses=(x,), keeps=(x,), aside=size("n", 2 * width),
                   gradient=size("h", 2 * width))]
    wide, exact = f"{out}: input", size("n h", 4)
    parts = ("squares", "mean", "scale", "scaled", "result")
    squares, mean, scale, scaled, result = (f"{out}: {part}" for part in parts)
    before = [] if width == 4 else [Op(f"{out}: upcast", wide, exact, uses=(x,))]
    after = [] if width == 4 else [Op(f"{out}: downcast", out, size("n h", width), uses=(result,), ends=(result,))]
    wide, result = (x, out) if width == 4 else (wide, result)
    return [
        *before,
        Op(squares, squares, exact, uses=(wide,), keeps=(wide,), work=2 * exact),
        Op(mean, mean, size("n", 4), uses=(squares,)),
        Op(scale, scale, size("n", 4), uses=(mean,), keeps=(scale,), ends=(squares, mean)),
        Op(scaled, scaled, exact, uses=(wide, scale), keeps=(wide, scale), work=exact),
        Op(f"{out}: weight", result, exact, uses=(scaled,), keeps=(scaled,), gradient=size("h", width), work=exact,
           ends=(scaled, scale) if width == 4 else (scaled, scale, wide)),
        *after,
    ]


def linear(precision: Precision, out: str, x: str, inner: str, outer: str, bias: bool, cast: bool = True,
           ends: tuple[str, ...] = ()) -> list[Op]:
    """out = x · weight + bias. Autocast first casts the weight, and the input where that is fp32 (`cast`)."""
    width = precision.compute
    made = size(f"n {outer}", width)
    parameters = size(f"{inner} {outer}", precision.gradients) + size(outer, precision.gradients if bias else 0)
    if not precision.autocast:
        return [Op(out, out, made, uses=(x,), keeps=(x,), gradient=parameters, ends=ends)]
    weight, ops = f"{out} weight as 16-bit", []
    ops.append(Op(weight, weight, size(f"{inner} {outer}", width), gradient=parameters))
    if cast:
        narrow = f"{out} input as 16-bit"
        ops.append(Op(narrow, narrow, size(f"n {inner}", width), uses=(x,)))
        x, ends = narrow, (*ends, narrow)
    return [*ops, Op(out, out, made, uses=(x, weight), keeps=(x, weight), ends=ends)]


def attention(shape: Shape, precision: Precision) -> list[Op]:
    """q, k, v, rotation, scaled dot-product attention (its flash kernel saves the log-sum-exp), output projection."""
    width, ops, names = precision.compute, [], []
    for name, outer in (("q", "h"), ("k", "k"), ("v", "k")):
        ops += linear(precision, name, "attention norm", "h", outer, shape.bias)
        names.append(name)
    if shape.positions == "rope":
        ops += [*rotate(width, "q rotated", "q", "h"), *rotate(width, "k rotated", "k", "k")]
        names[:2] = ["q rotated", "k rotated"]
    return [
        *ops,
        Op("attention", "attention", size("n h", width), uses=tuple(names), keeps=(*names, "attention"),
           aside=size("n a", 4)),
        *linear(precision, "attention out", "attention", "h", "h", shape.bias, cast=False,
                ends=("attention norm", *names, "attention")),
    ]


def rotate(width: int, out: str, x: str, outer: str) -> list[Op]:
    """x·cos + half-turned(x)·sin in fp32; nothing is saved but the tables."""
    narrow, exact = size(f"n {outer}", width), size(f"n {outer}", 4)
    extra = NOTHING if width == 4 else exact  # a gradient is made in fp32, then cast
    turned, cosine, sine, wide = (f"{out}: {part}" for part in ("turned", "cosine", "sine", "fp32"))
    half = size(f"n {outer}", width // 2)
    result = out if width == 4 else wide
    ops = [
        Op(turned, turned, narrow, uses=(x,), forward_work=half, work=half),
        Op(cosine, cosine, exact, uses=(x,), work=extra),
        Op(sine, sine, exact, uses=(turned,), work=extra, ends=(turned,)),
        Op(result, result, exact, uses=(cosine, sine), passes=True, ends=(cosine, sine, x)),
    ]
    return ops if width == 4 else [*ops, Op(out, out, narrow, uses=(wide,), ends=(wide,))]


def mlp(shape: Shape, precision: Precision) -> list[Op]:
    """GELU: up, gelu, down. SwiGLU: silu(gate) × up, down."""
    product = size("n f", precision.compute)
    wide = dict(inner="h", outer="f", bias=shape.bias)
    if shape.mlp == "gelu":
        ops = [*linear(precision, "mlp up", "mlp norm", **wide),
               Op("mlp product", "mlp product", product, uses=("mlp up",), keeps=("mlp up",), ends=("mlp up",))]
    else:
        ops = [*linear(precision, "mlp gate", "mlp norm", **wide),
               Op("silu", "silu", product, uses=("mlp gate",), keeps=("mlp gate",), ends=("mlp gate",)),
               *linear(precision, "mlp up", "mlp norm", **wide),
               Op("mlp product", "mlp product", product, uses=("silu", "mlp up"), keeps=("silu", "mlp up"),
                  ends=("silu", "mlp up"))]
    return [*ops, *linear(precision, "mlp down", "mlp product", "f", "h", shape.bias, cast=False,
                          ends=("mlp norm", "mlp product"))]


def residual(precision: Precision, out: str, x: str, added: str) -> list[Op]:
    """The stream stays in the weights' precision; under autocast a 16-bit gradient is made for what was added."""
    stream = size("n h", precision.weights)
    ops, ends = [], (x, added)
    if precision.autocast:
        wide = f"{added} as fp32"
        ops.append(Op(wide, wide, NOTHING, uses=(added,), grad=stream))
        added = wide
    return [*ops, Op(out, out, stream, uses=(x, added), passes=True, ends=ends)]
