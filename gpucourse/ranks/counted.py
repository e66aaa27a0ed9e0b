"""Counting what a rank's code asks of the network: `with ranks.counting() as seen:`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from gpucourse.ranks.traffic import FUNCTIONAL, KINDS, Traffic, of_functional, of_method


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count every collective and message that this thread starts: torch.distributed's, DDP's, FSDP's, DTensor's.

    `seen.calls` has them in order, `seen.count(kind)`, `seen.sent(kind)` and `seen.size(kind)` the totals of a kind, or
    of all. What other threads start is not seen. Works on gloo, on NCCL and over a paced link; each operation on
    tensors costs some microseconds more meanwhile, so time and count apart.
    """
    seen = Traffic([])
    with Listener(seen):
        yield seen


class Listener(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation inside loads torch's compiler, for seconds

    def __init__(self, seen: Traffic):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        library, _, name = operator._schema.name.partition("::")
        if library == "c10d" and (name := name.removesuffix("_")) in KINDS:
            group = ProcessGroup.unbox(next(arg for arg in args if is_group(arg)))
            others = [arg for arg in args if not is_group(arg)]
            self.seen.calls.append(of_method(name, others, group.rank(), group.size()))
        elif library.startswith("_c10d_functional") and name in FUNCTIONAL:
            group = _resolve_process_group(next(arg for arg in reversed(args) if isinstance(arg, str)))
            self.seen.calls.append(of_functional(name, args, group.rank(), group.size()))
        return operator(*args, **(kwargs or {}))


def is_group(arg) -> bool:
    return isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup"
