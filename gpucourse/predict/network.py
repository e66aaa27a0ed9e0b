"""The operations of our transformer, as autograd sees them: one list a block, one list for the head and the loss.

Sizes are in bytes over the dimensions of predict/axes.py. The rules are PyTorch's eager ones on a CPU: what each node
saves is read off its derivative formula, and each list is held against the dry run.
"""

from dataclasses import replace

from gpucourse.catalog.jobs import Precision
from gpucourse.catalog.shapes import Shape
from gpucourse.predict import experts, latent, ring
from gpucourse.predict.axes import WHOLE, Axes, queries
from gpucourse.predict.linears import linear, rms_norm, rotate
from gpucourse.predict.sizes import NOTHING, Size, size
from gpucourse.predict.tape import Op

STREAM = "x0"  # the residual stream as a list of operations finds it
NORMED = "final norm"
WIDE_LOGITS = "logits as fp32"


def block(shape: Shape, precision: Precision, axes: Axes = WHOLE) -> list[Op]:
    """x + attention(norm(x)), then x + mlp(norm(x)); models/transformer.py line by line."""
    return [*norm(shape, precision, axes, "attention norm", STREAM),
            *attention(shape, precision, axes),
            *residual(precision, axes, "attention added", STREAM, "attention out"),
            *norm(shape, precision, axes, "mlp norm", "attention added"),
            *mlp(shape, precision, axes),
            *residual(precision, axes, "mlp added", "attention added", "mlp down")]


def head(shape: Shape, precision: Precision, axes: Axes = WHOLE, widened: bool = False) -> tuple[list[Op], list[Op]]:
    """Final norm and output matrix; and, outside of the model, cross-entropy. Logits live until the loss is known.

    Autocast computes the loss in fp32 from 16-bit logits that the training loop holds; where the model itself hands
    out fp32 (`widened`), nobody does.
    """
    spread = axes.tp > 1 and not axes.loss  # each rank multiplies its part of the vocabulary, then all are gathered
    made, vocab = ("logits/t" if spread else "logits"), ("V" if spread else axes.part("V"))
    begin, x, saved = enter(precision, axes, "head input", "final norm")
    ends = ("final norm", "head input")  # the head's caller holds its input until all of it has returned
    ops = [*norm(shape, precision, axes, "final norm", STREAM), *begin,
           *linear(precision, made, x, "h", axes.part("V"), bias=False, saved=saved, ends=() if spread else ends)]
    if spread:
        whole = size("n V", precision.compute)
        ops.append(Op("logits", "logits", whole, uses=(made,), forward_work=whole, ends=(made, *ends)))
    given, width, loss = "logits", 4 if precision.autocast or widened else precision.weights, []
    if width != precision.compute:
        given = WIDE_LOGITS
        loss.append(Op(given, given, size(f"n {vocab}", 4), uses=("logits",), ends=("logits",) if widened else ()))
    logits = size(f"n {vocab}", width)
    if not axes.loss:
        return ops, [*loss, *whole_loss(given, logits)]
    exact = size(f"n {vocab}", 4)
    return ops, [*loss, *divided_loss(given, logits, exact if width == 4 else 3 * exact)]


def head_norm(shape: Shape, precision: Precision) -> list[Op]:
    """The final norm alone, where head and loss come in parts."""
    return norm(shape, precision, WHOLE, NORMED, STREAM)


def part_of_loss(precision: Precision, axes: Axes = WHOLE) -> list[Op]:
    """Output matrix and cross-entropy of some of the tokens, in fp32; models/chunked.py line by line."""
    spread = axes.tp > 1 and not axes.loss
    made, vocab = ("logits/t" if spread else "logits"), ("V" if spread else axes.part("V"))
    begin, x, saved = enter(precision, axes, "head input", NORMED)
    ops = [*begin, *linear(precision, made, x, "h", axes.part("V"), bias=False, saved=saved)]
    if spread:
        whole = size("n V", precision.compute)
        ops.append(Op("logits", "logits", whole, uses=(made,), forward_work=whole, ends=(made,)))
    made, logits = "logits", size(f"n {vocab}", 4)
    if precision.compute != 4:
        ops.append(Op(WIDE_LOGITS, WIDE_LOGITS, logits, uses=(made,), ends=(made,)))
        made = WIDE_LOGITS
    return [*ops, *(divided_loss(made, logits, logits) if axes.loss else whole_loss(made, logits))]


def whole_loss(given: str, logits: Size) -> list[Op]:
    return [
        Op("log-softmax", "log-softmax", logits, uses=(given,), keeps=("log-softmax",)),
        Op("loss", "loss", Size({(): 4}), uses=("log-softmax",), keeps=("log-softmax",), ends=("logits", given)),
    ]


def divided_loss(given: str, logits: Size, shifted: Size) -> list[Op]:
    """loss_parallel: logits less the largest, exponentials, result; backward makes their gradient in one go.

    shifted: what it makes on the way, in fp32: of 16-bit logits a copy and a result as well.
    """
    return [
        Op("log-softmax", "log-softmax", logits, uses=(given,), keeps=("log-softmax",), passes=True,
           forward_work=shifted + size("n", 12)),
        Op("loss", "loss", Size({(): 4}), uses=("log-softmax",), keeps=("log-softmax",), ends=("logits", given),
           work=2 * logits + size("n", 33) + Size({(): 4})),
    ]


def enter(precision: Precision, axes: Axes, out: str, x: str) -> tuple[list[Op], str, str]:
    """Where the divided work on x begins: the operations, the tensor that is worked on, the one that is saved.

    Forward, the whole sequence is gathered; backward, the ranks' gradients of x are added up.
    """
    whole = size("n h", precision.weights)
    if axes.tp == 1:
        return [], x, x
    if axes.sequence:
        return [Op(out, out, whole, uses=(x,), forward_work=whole, work=whole)], out, out
    return [Op(out, out, NOTHING, uses=(x,), grad=whole)], out, x


def leave(precision: Precision, axes: Axes, out: str, x: str, ends: tuple[str, ...]) -> list[Op]:
    """Where the divided work ends: the ranks' results x are added up; backward, their gradient is what each needs."""
    whole = size("n h", precision.compute)
    if axes.sequence:
        return [Op(out, out, size("n/t h", precision.compute), uses=(x,), forward_work=whole, work=whole,
                   ends=(x, *ends))]
    return [Op(out, out, whole, uses=(x,), passes=True, ends=(x, *ends))]


def norm(shape: Shape, precision: Precision, axes: Axes, out: str, x: str) -> list[Op]:
    """LayerNorm is one node."""
    width, n = precision.weights, axes.stream
    made = size(f"{n} h", width)
    if shape.norm == "layernorm":
        return [Op(out, out, made, uses=(x,), keeps=(x,), aside=size(n, 2 * width), gradient=size("h", 2 * width))]
    return rms_norm(out, x, n, "h", width, width)


def row_linear(precision: Precision, axes: Axes, out: str, x: str, inner: str, bias: bool,
               ends: tuple[str, ...]) -> list[Op]:
    """The second matrix of a divided half: each rank has a part of the inner dimension, and of every sum."""
    if axes.tp == 1:
        return linear(precision, out, x, inner, "h", bias, cast=False, ends=ends)
    partial = f"{out}, a rank's part"
    return [*linear(precision, partial, x, axes.part(inner), "h", bias, cast=False),
            *leave(precision, axes, out, partial, ends)]


def attention(shape: Shape, precision: Precision, axes: Axes) -> list[Op]:
    """q, k, v, rotation, scaled dot-product attention (its flash kernel saves the log-sum-exp), output projection."""
    width, heads = precision.compute, axes.part("a")
    ops, x, saved = enter(precision, axes, "attention input", "attention norm")
    if shape.latent:
        ops, names, kept = ops + latent.projections(precision, axes, x, saved), latent.GIVEN, latent.KEPT
        q, k, out, made, grouped = f"{heads} key", f"{heads} key", "a value", f"{heads} value", False
    else:
        more, names = projections(shape, precision, axes, x, saved)
        ops, kept, out = ops + more, names, queries(shape)
        q, k, made, grouped = axes.part(out), axes.part("k"), axes.part(out), shape.heads >= 2 * shape.kv_heads
    around = {} if axes.cp == 1 else dict(forward_work=ring.forward_work(axes.cp, width, q, k, heads),
                                          work=ring.backward_work(axes.cp, width, q, k, grouped))
    return [
        *ops,
        Op("attention" if axes.cp == 1 else "ring attention", "attention", size(f"n {made}", width), uses=names,
           keeps=(*kept, "attention"), aside=size(f"n {heads}", 4), kind="attention", **around),
        *row_linear(precision, axes, "attention out", "attention", out, shape.bias,
                    ends=("attention norm", "attention input", *kept, "attention")),
    ]


def projections(shape: Shape, precision: Precision, axes: Axes, x: str, saved: str) -> tuple[list[Op], tuple[str, ...]]:
    """q, k, v from x, normed and rotated where the shape says so; and the names of those that attention is given."""
    width, q, k = precision.compute, axes.part(queries(shape)), axes.part("k")
    ops, names = [], ("q", "k", "v")
    for name, outer in (("q", q), ("k", k), ("v", k)):
        ops += linear(precision, name, x, "h", outer, shape.bias or shape.qkv_bias, saved=saved)
    if shape.qk_norm:
        for name, heads, ends in (("q", "a", ()), ("k", "g", ("q", "k"))):
            ops += rms_norm(f"{name} normed", name, f"n {axes.part(heads)}", "d", width, precision.weights, ends)
        names = ("q normed", "k normed", "v")
    if shape.positions == "rope":
        ops += [*rotate(width, "q rotated", names[0], q), *rotate(width, "k rotated", names[1], k)]
        names = ("q rotated", "k rotated", "v")
    return ops, names


def mlp(shape: Shape, precision: Precision, axes: Axes) -> list[Op]:
    """GELU: up, gelu, down. SwiGLU: silu(gate) × up, down. Or experts, with those that every token visits beside."""
    ops, x, saved = enter(precision, axes, "mlp input", "mlp norm")
    ends = ("mlp norm", "mlp input")
    if not shape.experts:
        return [*ops, *hidden(shape, precision, axes, x, saved, "f"),
                *row_linear(precision, axes, "mlp down", "mlp product", "f", shape.bias, ends=(*ends, "mlp product"))]
    made = "mlp down" if axes.tp == 1 else "mlp down, a rank's part"
    ops += experts.experts(precision, axes, x, saved, "routed" if shape.experts.shared else made)
    if shape.experts.shared:
        wide = axes.part("shared_ffn")
        ops += [*hidden(shape, precision, axes, x, saved, "shared_ffn"),
                *linear(precision, "shared", "mlp product", wide, "h", shape.bias, cast=False),
                Op(made, made, size("n h", precision.compute), uses=("shared", "routed"), passes=True,
                   ends=("shared", "routed", "mlp product"))]
    if axes.tp > 1:
        return [*ops, *leave(precision, axes, "mlp down", made, ends)]
    return [*ops[:-1], replace(ops[-1], ends=(*ops[-1].ends, *ends))]


def hidden(shape: Shape, precision: Precision, axes: Axes, x: str, saved: str, width: str) -> list[Op]:
    """From x to `mlp product`, what the second matrix is given."""
    f = axes.part(width)
    product = size(f"n {f}", precision.compute)
    wide = dict(x=x, inner="h", outer=f, bias=shape.bias, saved=saved)
    if shape.mlp == "gelu":
        return [*linear(precision, "mlp up", **wide),
                Op("mlp product", "mlp product", product, uses=("mlp up",), keeps=("mlp up",), ends=("mlp up",))]
    return [*linear(precision, "mlp gate", **wide),
            Op("silu", "silu", product, uses=("mlp gate",), keeps=("mlp gate",), ends=("mlp gate",)),
            *linear(precision, "mlp up", **wide),
            Op("mlp product", "mlp product", product, uses=("silu", "mlp up"), keeps=("silu", "mlp up"),
               ends=("silu", "mlp up"))]


def residual(precision: Precision, axes: Axes, out: str, x: str, added: str) -> list[Op]:
    """The stream stays in the weights' precision; under autocast a 16-bit gradient is made for what was added."""
    stream = size(f"{axes.stream} h", precision.weights)
    ops, ends = [], (x, added)
    if precision.autocast:
        wide = f"{added} as fp32"
        ops.append(Op(wide, wide, NOTHING, uses=(added,), grad=stream))
        added = wide
    return [*ops, Op(out, out, stream, uses=(x, added), passes=True, ends=ends)]
