"""What a collective moves: its kind, the bytes of its whole buffer and the bytes that one rank sends."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpucourse.errors import unknown
from gpucourse.predict import link as links

# Methods of torch's ProcessGroup and, with a trailing underscore, its operators. Their first argument is what they
# write, the second what they read where that is another.
KINDS = {
    "allreduce": "all-reduce", "allreduce_coalesced": "all-reduce", "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all-gather", "_allgather_base": "all-gather", "all_gather_single": "all-gather",
    "allgather_coalesced": "all-gather", "allgather_into_tensor_coalesced": "all-gather",
    "all_gather_single_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "reduce_scatter_single_coalesced": "reduce-scatter",
    "alltoall": "all-to-all", "alltoall_base": "all-to-all", "all_to_all_single": "all-to-all",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "send": "send", "recv": "receive", "recv_any_source": "receive",
}
# Operators of torch.distributed._functional_collectives: what they read comes first, what they write is returned.
FUNCTIONAL = {
    "all_reduce": "all-reduce", "all_reduce_": "all-reduce", "all_reduce_coalesced": "all-reduce",
    "all_reduce_coalesced_": "all-reduce", "broadcast": "broadcast", "broadcast_": "broadcast",
    "all_gather_into_tensor": "all-gather", "all_gather_into_tensor_coalesced": "all-gather",
    "all_gather_into_tensor_out": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "reduce_scatter_tensor_out": "reduce-scatter", "all_to_all_single": "all-to-all",
}


@dataclass(frozen=True)
class Call:
    """One collective or message. size: bytes of the whole buffer, as in predict.link. sent: bytes this rank sends.

    For torch's collectives `sent` is what a ring sends; for `send` it is what was sent.
    """

    kind: str
    size: float
    ranks: int
    sent: float


@dataclass(frozen=True)
class Traffic:
    """Calls of one rank, in the order in which they were made."""

    calls: list[Call]

    def count(self, kind: str | None = None) -> int:
        """How many calls there were, of one kind (`all-reduce`, `send`, …) or in all."""
        return len(self._of(kind))

    def sent(self, kind: str | None = None) -> float:
        """Bytes that this rank sends."""
        return sum(call.sent for call in self._of(kind))

    def size(self, kind: str | None = None) -> float:
        """Bytes of the calls' whole buffers."""
        return sum(call.size for call in self._of(kind))

    def _of(self, kind: str | None) -> list[Call]:
        kinds = dict.fromkeys(KINDS.values())
        if kind is not None and kind not in kinds:
            raise unknown("kind of call", kind, kinds)
        return [call for call in self.calls if kind in (None, call.kind)]


def tensor_bytes(tensors) -> int:
    """Bytes of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, Sequence):
        return sum(map(tensor_bytes, tensors))
    return tensors.nbytes if hasattr(tensors, "nbytes") else 0


def of_method(name: str, args: Sequence, rank: int, ranks: int) -> Call:
    """The call of a process group's method, or of the operator of that name, with these arguments."""
    kind = KINDS[name]
    written, read = (tensor_bytes(arg) for arg in (*args, None, None)[:2])
    if kind == "gather":  # the root alone has room for what is gathered
        return Call(kind, ranks * read, ranks, 0 if written else read)
    if kind == "scatter":  # the root alone has something to scatter
        return Call(kind, ranks * written, ranks, read * (ranks - 1) / ranks)
    if kind == "all-to-all":
        return Call(kind, read, ranks, read - kept(args[1], args[2:], rank, ranks))
    whole = {"all-gather": ranks * read, "reduce-scatter": read, "barrier": 0}.get(kind, written)
    return Call(kind, whole, ranks, sent(kind, whole, ranks))


def of_functional(name: str, args: Sequence, rank: int, ranks: int) -> Call:
    """The call of an operator of `_c10d_functional`."""
    kind, read = FUNCTIONAL[name], tensor_bytes(args[0])
    if kind == "all-to-all":
        return Call(kind, read, ranks, read - kept(args[0], args[1:], rank, ranks))
    whole = ranks * read if kind == "all-gather" else read
    return Call(kind, whole, ranks, sent(kind, whole, ranks))


def sent(kind: str, whole: float, ranks: int) -> float:
    return links.bus_factor(kind, ranks) * whole if kind in links.COLLECTIVES else 0.0


def kept(read, more: Sequence, rank: int, ranks: int) -> float:
    """Bytes of an all-to-all's input that stay on this rank. more: the arguments behind it, among them two splits."""
    if isinstance(read, Sequence):
        return tensor_bytes(read[rank])
    lists = [arg for arg in more if isinstance(arg, Sequence) and not isinstance(arg, str)]
    splits = lists[1] if len(lists) > 1 else ()
    return tensor_bytes(read) * (splits[rank] / sum(splits) if any(splits) else 1 / ranks)
