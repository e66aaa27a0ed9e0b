"""One process that believes to be one rank of many: torch's fake process group, whose collectives do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from gpucourse.errors import BadInput


@contextmanager
def one_rank_of(world_size: int) -> Iterator[None]:
    """Rank 0 of `world_size`, while the context is entered. Private to torch.testing: this is its one wrapper."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise BadInput("this process is a rank already; make dry runs of several ranks in a process of their own")
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
