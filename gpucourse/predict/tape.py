"""What autograd holds, by arithmetic: a list of operations, and the bytes alive while it runs forward and backward.

This is PyTorch's rule book in small. Forward: an operation makes its output, and keeps what its backward will need.
Backward, in the opposite order: an operation makes the gradients of what it used, then lets go of what it kept and of
the gradient it was given; where a tensor was used twice, the two gradients are added into a new one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucourse.predict.sizes import NOTHING, Size, total


@dataclass(frozen=True)
class Op:
    """One node of the autograd graph.

    out, size: the tensor that it makes (size NOTHING: a view). uses: the tensors that get a gradient from it.
    keeps: the tensors saved for its backward. aside: what it makes besides and keeps, such as a norm's statistics.
    ends: tensors whose last use in forward it is. gradient: of its parameters. passes: its backward hands the same
    gradient on, as an addition does. forward_work, work: the most that it has besides, in forward and in backward.
    grad: bytes of the output's gradient, where not those of the output.
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


@dataclass(frozen=True)
class High:
    """The highest moment of an operation: bytes above the start of the pass, and the operation's name."""

    bytes: int
    at: str


def highest(highs: Iterable[High]) -> High:
    return max(highs, key=lambda high: high.bytes, default=High(0, "its start"))


def kept(ops: list[Op], given: Mapping[str, Size]) -> Size:
    """What a forward pass over `ops` leaves alive for backward; of the `given` tensors those that it keeps."""
    sizes = dict(given) | {op.out: op.size for op in ops}
    names = {name for op in ops for name in op.keeps}
    return total([*(sizes[name] for name in sizes if name in names), *(op.aside for op in ops)])


def forward(ops: list[Op], dims: Mapping[str, int], keep: bool = True) -> list[High]:
    """Each operation's highest moment. Without `keep`, as under recomputation, nothing is saved for backward."""
    sizes = {op.out: op.size.at(dims) for op in ops}
    saved = {name for op in ops for name in op.keeps} if keep else set()
    live, highs = 0, []
    for op in ops:
        aside = op.aside.at(dims)
        live += sizes[op.out] + aside
        highs.append(High(live + op.forward_work.at(dims), op.name))
        live -= 0 if keep else aside
        live -= sum(sizes.get(name, 0) for name in op.ends if name not in saved)
    return highs


def backward(ops: list[Op], dims: Mapping[str, int], given: Mapping[str, Size], again: bool = False,
             lent: bool = False) -> list[High]:
    """Each operation's highest moments of backward, from the last operation to the first.

    At the start everything that forward kept is alive, and so is the gradient of the last output; both belong to the
    start. given: the tensors that `ops` begin from. again: gradients exist already and the new ones are added to them.
    lent: the last output's gradient is held from outside as well, and so stays.
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
        live -= release(mine) + op.aside.at(dims)
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
    return highs
