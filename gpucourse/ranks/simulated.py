"""Many ranks in one process, with real numbers: each tensor stands for one tensor a rank.

The only place that uses torch's LocalTensorMode, which is private to it.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode, local_tensor_mode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map

from gpucourse.errors import BadInput, positive_int


def simulate(fn, n: int, *args, **kwargs) -> list:
    """What `fn(*args, **kwargs)` gives on each of n ranks, simulated in this process: results by rank.

    `fn` runs once. Collectives and DTensor compute what they would on n ranks; `ranks.by_rank` makes a tensor that
    differs by rank, `dist.get_rank()` does not. Point-to-point messages, DDP and FSDP need processes: `ranks.run`.
    """
    if not callable(fn):
        raise BadInput(f"ranks.simulate was given {type(fn).__name__}, not a function: pass the function itself")
    if dist.is_initialized():
        raise BadInput("this process has a process group; end it first: torch.distributed.destroy_process_group()")
    positive_int("ranks", n)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=n)
    try:
        with LocalTensorMode(n):
            result = tree_map(as_local, fn(*args, **kwargs))
    finally:
        dist.destroy_process_group()
    return [tree_map(lambda leaf, rank=rank: of_rank(leaf, rank), result) for rank in range(n)]


def by_rank(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """In a simulation, the tensor that is `make(rank)` on each rank; on real ranks, this rank's."""
    mode = local_tensor_mode()
    return make(dist.get_rank()) if mode is None else mode.rank_map(make)


def as_local(leaf):
    return leaf.to_local() if isinstance(leaf, DTensor) else leaf


def of_rank(leaf, rank: int):
    return leaf._local_tensors[rank] if isinstance(leaf, LocalTensor) else leaf
