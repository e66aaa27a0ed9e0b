"""A backward in halves, as torch.distributed.pipelining's stage_backward_input and stage_backward_weight play it.

The half for the input keeps the whole graph, and besides the gradient that arrives at each node with parameters. The
half for the weights begins from those, node by node in the order of the parameters; what it does not pass through, such
as attention, is let go of when all of it is over.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpucourse.predict.sizes import NOTHING, Size
from gpucourse.predict.tape import High, Op

SOURCE = "torch.distributed.pipelining, stage_backward_input and stage_backward_weight"


def for_input(ops: Sequence[Op], given: Mapping[str, Size]) -> Iterator[Op]:
    """The operations that lead to the `given` tensors, as that half plays them: nothing is let go of or made for
    parameters."""
    reached, casts = set(given), {op.out for op in ops if op.gradient.terms and not op.uses}
    for op in ops:
        uses = tuple(name for name in op.uses if name in reached)
        if uses:
            reached.add(op.out)
            holds = bool(op.gradient.terms) or not casts.isdisjoint(op.uses)  # autocast casts a weight by itself
            work = NOTHING if op.gradient.terms else op.work
            yield replace(op, uses=uses, keeps=(), aside=NOTHING, gradient=NOTHING, work=work, holds=holds)


def for_weights(ops: Sequence[Op], dims: Mapping[str, int], given: Mapping[str, Size], again: bool,
                received: bool) -> tuple[list[High], Size]:
    """The highest moments of that half, in the order of the parameters, and what it adds to what was alive before.

    again: gradients exist already; each new one is there until the next is made. received: the `given` tensors came
    from another stage, and are held as such.
    """
    mine = {} if received else given
    sizes = {name: of.at(dims) for name, of in mine.items()} | {op.out: op.size.at(dims) for op in ops}
    keepers = Counter(name for op in ops for name in op.keeps)
    made_by = {op.out: op for op in ops}
    live, before, highs = 0, 0, []
    held = holders(ops, given)
    for op in (op for op in ops if op.out in held):
        casts = [made_by[name] for name in op.uses if name in made_by and not made_by[name].uses]
        made = sum(of.gradient.at(dims) for of in (op, *casts))
        keepers.subtract(op.keeps)
        gone = sum(sizes.get(name, 0) for name in op.keeps if not keepers[name])
        if casts:  # a cast weight's gradient is cast too, when the product has let go of what it had kept
            narrow = live + before + sum(cast.size.at(dims) for cast in casts)
            highs += [High(narrow, op.name), High(narrow + made - gone, casts[0].name)]
        else:
            highs.append(High(live + before + made + op.work.at(dims) * bool(op.gradient.terms), op.name))
        before = made if again else 0
        live += 0 if again else made
        live -= (op.grad or op.size).at(dims) + op.aside.at(dims) + gone
    return highs, live


def holders(ops: Sequence[Op], given: Mapping[str, Size]) -> set[str]:
    """What the nodes make whose gradient is kept for the half for the weights."""
    return {op.out for op in for_input(ops, given) if op.holds}


def unheld(ops: Sequence[Op], given: Mapping[str, Size]) -> Iterator[Op]:
    """The operations that no node with parameters leads to: what they alone keep goes with the half for the input."""
    led_to = holders(ops, given)
    for op in reversed(ops):
        led_to.update(op.uses if op.out in led_to else ())
    kept = {name for op in ops if op.out in led_to for name in op.keeps}
    for op in ops:
        if op.out not in led_to:
            yield replace(op, keeps=tuple(name for name in op.keeps if name not in kept))
