"""What forward leaves of a block under each way of recomputation, and what backward has to bring back.

`full` runs the whole block again from its input. `op` does too, but finds the results of matrix products and attention
where the first run put them; `op-2` of the first product, the third and so on. `attention` runs scaled dot-product
attention again from q, k and v.
"""

from collections.abc import Mapping, Sequence

from gpucourse.predict import tape
from gpucourse.predict.tape import High, Left, Op, Replay

WHOLE = ("op", "op-2", "full")  # the block runs again as a whole, and so its input stays


def left(ops: Sequence[Op], word: str) -> Left:
    """What forward leaves besides the block's input; word: none, attention, op, op-2 or full."""
    if word in ("none", "attention"):
        kept = tape.kept(ops)
        return Left(kept.tensors, kept.asides - {op.name for op in ops if word == op.kind})
    dear = []
    if word != "full":
        products = [op for op in ops if op.kind == "product"][::2 if word == "op-2" else 1]
        dear = [op for op in ops if op.kind == "attention" or op in products]
    return Left(frozenset(op.out for op in dear), frozenset(op.name for op in dear))


def replay(ops: Sequence[Op], dims: Mapping[str, int], word: str) -> Replay | None:
    """What runs again: up to the last tensor that backward asks for, which needs no result of the last product."""
    if word == "none":
        return None
    if word == "attention":  # its first result, which the output matrix had saved, is gone by then
        again = next(op for op in ops if op.kind == "attention")
        statistics = again.aside.at(dims)
        return Replay(again.name, (High(statistics + again.forward_work.at(dims), again.name),), statistics)
    last = max(i for i, op in enumerate(ops) if op.keeps)
    again, there, kept = ops[:last], left(ops, word), tape.kept(ops)
    made = sum(op.size.at(dims) for op in again if op.out in kept.tensors)
    made += sum(op.aside.at(dims) for op in again)
    found = sum(op.size.at(dims) for op in again if op.out in there.tensors)
    found += sum(op.aside.at(dims) for op in again if op.name in there.asides)
    return Replay(ops[last].name, tuple(tape.forward(again, dims, kept, there)), made - found)
