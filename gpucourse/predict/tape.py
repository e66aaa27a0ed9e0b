"""What autograd holds, by arithmetic: a list of operations, and the bytes alive while it runs forward and backward.

This is PyTorch's rule book in small. Forward: an operation makes its output, and keeps what its backward will need.
Backward, in the opposite order: an operation makes the gradients of what it used, then lets go of what it kept and of
the gradient it was given; where a tensor was used twice, the two gradients are added into a new one.

Played over dimensions that are not known yet (sizes.UNKNOWN), the bytes are formulas: of those only a few can be the
highest, and a prediction evaluates no others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucourse.predict.sizes import NOTHING, Size, total

END = "its end"


@dataclass(frozen=True)
class Op:
    """One node of the autograd graph.

    out, size: the tensor that it makes (size NOTHING: a view). uses: the tensors that get a gradient from it.
    keeps: the tensors saved for its backward. aside: what it makes besides and keeps, such as a norm's statistics.
    ends: tensors whose last use in forward it is. gradient: of its parameters. passes: its backward hands the same
    gradient on, as an addition does. forward_work, work: the most that it has besides, in forward and in backward.
    grad: bytes of the output's gradient, where not those of the output. kind: "product" or "attention", which are dear
    to run again; else "". holds: its backward does not let go of the gradient that it was given.
    """

    name: str
    out: str
    size: Size
    uses: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    aside: Size = NOTHING
    gradient: Size = NOTHING
    passes: bool = False
    forward_work: Size = NOTHING
    work: Size = NOTHING
    grad: Size | None = None
    kind: str = ""
    holds: bool = False


@dataclass(frozen=True)
class Left:
    """What a forward pass leaves alive: tensors by name; operations by name whose `aside` stays."""

    tensors: frozenset[str] = frozenset()
    asides: frozenset[str] = frozenset()


@dataclass(frozen=True)
class High:
    """The highest moment of an operation: bytes above the start of the pass, and the operation's name."""

    bytes: int | Size
    at: str


@dataclass(frozen=True)
class Replay:
    """Operations run again in backward, once operation `at` asks for what it had saved.

    highs: their highest moments, and end: bytes once they have run, both above what was alive before.
    """

    at: str
    highs: tuple[High, ...]
    end: int


def highest(highs: Iterable[High]) -> High:
    return max(highs, key=lambda high: high.bytes, default=High(0, "its start"))


def candidates(highs: Sequence[High]) -> tuple[High, ...]:
    """Of highs that are formulas those that can be the highest, for some dimensions."""
    found: list[High] = []
    for high in highs:
        if not any(other.bytes.covers(high.bytes) for other in found):
            found = [*(other for other in found if not high.bytes.covers(other.bytes)), high]
    return tuple(found)


def highest_at(highs: Iterable[High], dims: Mapping[str, int]) -> High:
    return highest(High(high.bytes.at(dims), high.at) for high in highs)


def kept(ops: Sequence[Op]) -> Left:
    """What backward asks for: all that operations save."""
    return Left(frozenset(name for op in ops for name in op.keeps), frozenset(op.name for op in ops))


def size_of(ops: Sequence[Op], left: Left, given: Mapping[str, Size]) -> Size:
    """Bytes of what is left after `ops`; of the `given` tensors those that are among it."""
    sizes = dict(given) | {op.out: op.size for op in ops}
    return total([*(sizes[name] for name in sizes if name in left.tensors),
                  *(op.aside for op in ops if op.name in left.asides)])


def forward(ops: Sequence[Op], dims: Mapping[str, int], left: Left, there: Left = Left()) -> list[High]:
    """Each operation's highest moment when `left` stays alive. there: what exists already, and is not made."""
    sizes = {op.out: op.size.at(dims) for op in ops}
    live, highs = 0, []
    for op in ops:
        aside = op.aside.at(dims) * (op.name not in there.asides)
        live += sizes[op.out] * (op.out not in there.tensors) + aside
        highs.append(High(live + op.forward_work.at(dims), op.name))
        live -= aside * (op.name not in left.asides)
        live -= sum(sizes.get(name, 0) for name in op.ends if name not in left.tensors)
    return highs


def backward(ops: Sequence[Op], dims: Mapping[str, int], given: Mapping[str, Size], again: bool = False,
             lent: bool = False, replay: Replay | None = None, ending: bool = False) -> list[High]:
    """Each operation's highest moments of backward, from the last operation to the first.

    At the start everything that forward left is alive, and so is the gradient of the last output; both belong to the
    start. given: the tensors that `ops` begin from. again: gradients exist already and the new ones are added to them.
    lent: the last output's gradient is held from outside as well, and so stays. replay: what brings back that which
    forward did not leave. ending: with what is alive at the end, in last place.
    """
    sizes = {name: of.at(dims) for name, of in given.items()} | {op.out: op.size.at(dims) for op in ops}
    gradient_size = sizes | {op.out: op.grad.at(dims) for op in ops if op.grad}
    keepers = Counter(name for op in ops for name in op.keeps)
    owner = {ops[-1].out: ops[-1].out}  # tensor → which gradient buffer it waits with
    buffers = Counter({ops[-1].out: 2 if lent else 1})  # gradient buffer → tensors that wait with it
    buffer_size = {ops[-1].out: gradient_size[ops[-1].out]}
    live, highs = 0, []

    def release(buffer: str) -> int:
        buffers[buffer] -= 1
        return 0 if buffers[buffer] else buffer_size[buffer]

    for step, op in enumerate(reversed(ops)):
        if op.out not in owner:
            continue
        mine = owner.pop(op.out)
        if replay and op.name == replay.at:
            highs += [High(live + high.bytes, f"{high.at}, again") for high in replay.highs]
            live += replay.end
        arrived = []  # (tensor, gradient buffer)
        for name in op.uses:
            buffer = mine if op.passes else f"{name}@{step}"
            if not op.passes:
                buffer_size[buffer] = gradient_size[name]
                live += gradient_size[name]
            buffers[buffer] += 1
            arrived.append((name, buffer))
        made = op.gradient.at(dims)
        highs.append(High(live + made + op.work.at(dims), op.name))
        live += 0 if again else made
        live -= (0 if op.holds else release(mine)) + op.aside.at(dims)
        for name in op.keeps:
            keepers[name] -= 1
            live -= 0 if keepers[name] else sizes.get(name, 0)
        for name, buffer in arrived:
            if name in owner:
                both = f"{name}+{step}"
                buffer_size[both] = gradient_size[name]
                live += gradient_size[name]
                highs.append(High(live, f"{op.name}: adding gradients"))
                live -= release(owner[name]) + release(buffer)
                buffers[both], buffer = 1, both
            owner[name] = buffer
    return [*highs, High(live, END)] if ending else highs
