"""Low-rank adapters on frozen weights: what becomes of a block's operations, and which tensors are trained.

Each matrix product turns into the frozen one, two narrow ones beside it, and their sum; models/lora.py line by line.
A frozen matrix needs no saved input, but the first adapter does; a frozen norm no longer needs its scaled input. In
the first block nothing before the first adapter has a gradient, as the embedding is frozen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpucourse.catalog.jobs import Precision
from gpucourse.predict.linears import linear
from gpucourse.predict.sizes import NOTHING, Size
from gpucourse.predict.tape import Op

RANK = "rank"  # the dimension between the two adapters


def adapted(ops: Iterable[Op], given: Mapping[str, Size], precision: Precision) -> list[Op]:
    """`ops` of a block with their parameters frozen, and adapters on each product."""
    sizes, made, found = dict(given), {}, []
    for op in ops:
        sizes[op.out], made[op.out] = op.size, op
        if op.kind != "product":
            found.append(frozen(op))
            continue
        x, *weight = op.uses
        cast = weight and x == f"{op.name} input as 16-bit"
        source = made[x].uses[0] if cast else x
        saved = "" if cast else op.keeps[0]
        (inner, outer), base = (_width(sizes[name]) for name in (saved or x, op.out)), f"{op.name}, frozen"
        narrow = (x,) if cast else ()
        found += [
            replace(op, name=base, out=base, gradient=NOTHING, keeps=tuple(weight), ends=(*narrow, *weight)),
            *linear(precision, f"{op.name}, A", source, inner, RANK, False, cast=bool(cast), saved=saved),
            *linear(precision, f"{op.name}, B", f"{op.name}, A", RANK, outer, False, cast=False,
                    ends=(f"{op.name}, A",)),
            Op(op.out, op.out, op.size, uses=(base, f"{op.name}, B"), passes=True,
               ends=(base, f"{op.name}, B", *(name for name in op.ends if name not in narrow))),
        ]
    return found


def frozen(op: Op) -> Op:
    """A norm's weight that is not trained needs no saved input; LayerNorm saves its own for the input's gradient."""
    if op.gradient is NOTHING or op.aside.terms:
        return replace(op, gradient=NOTHING)
    return replace(op, gradient=NOTHING, keeps=(), work=NOTHING)


def frozen_head(ops: Iterable[Op]) -> list[Op]:
    """Final norm, output matrix and loss, of which nothing is trained."""
    return without_gradient([replace(op, gradient=NOTHING, keeps=op.uses[1:], ends=(*op.ends, *op.uses[1:]))
                             if op.kind == "product" else frozen(op) for op in ops], "")


def without_gradient(ops: Iterable[Op], constant: str) -> list[Op]:
    """`ops` when nobody asks for the gradient of `constant`: what depends on it alone saves nothing."""
    asked, found, ops = set(), [], list(ops)
    inner = {op.out for op in ops} | {constant}
    for op in ops:
        uses = tuple(name for name in op.uses if name in asked or name not in inner)
        if uses or op.gradient.terms:
            asked.add(op.out)
            found.append(replace(op, uses=uses, keeps=_needed(op, asked)))
        else:
            found.append(replace(op, uses=(), keeps=(), aside=NOTHING, forward_work=op.forward_work + op.aside))
    return found


def _needed(op: Op, asked: set[str]) -> tuple[str, ...]:
    """A product saves its weight only for its input's gradient."""
    if op.kind == "product" and len(op.uses) == 2 and op.uses[0] not in asked:
        return tuple(name for name in op.keeps if name != op.uses[1])
    return op.keeps


def adapters(block: Iterable[tuple[int, int]], rank: int) -> tuple[tuple[int, int], ...]:
    """The tensors beside each matrix [out, in] of a block: A [rank, in], B [out, rank]."""
    return tuple(tensor for rows, columns in block if columns > 1 for tensor in ((rank, columns), (rows, rank)))


def gradient_bytes(trained: int, frozen: int, width: int, flattened: bool) -> int:
    """Gradients of a unit that holds trained and frozen elements, `width` bytes each.

    flattened: into one parameter, as FSDP1 does unless told otherwise; then all of it has a gradient.
    """
    return width * (trained + frozen * flattened)


def _width(of: Size) -> str:
    """The dimension of [n, width]."""
    (term,) = of.terms
    return " ".join(term[1:])
