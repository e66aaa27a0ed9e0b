"""Exercise 11.6: a checkpoint that is written once, all of it or nothing."""

import random

from gpucourse.exercises.expect import expect_equal
from gpucourse.exercises.on_ranks import on_ranks

ONE_A_NODE = {"LOCAL_RANK": "0"}  # two nodes with one rank each
SLOW = 1.0  # seconds that a slow disk takes, at most: it is done at once when the other rank has tried to load


def one_rank(save, folder: str, seed: int):
    """On one rank: how many files it wrote with torch.save, whether into `path` itself, and what `path` held after."""
    import os
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    rank, path = dist.get_rank(), Path(folder) / "model.pt"
    tried = [Path(folder) / f"tried.{number}" for number in range(dist.get_world_size())]
    state = {"weights": torch.randn(500, generator=torch.Generator().manual_seed(seed))}
    torch_save, written = torch.save, []

    def watched(what, to, *args, **kwargs):
        written.append(same(getattr(to, "name", to), path))
        until = time.monotonic() + SLOW
        while time.monotonic() < until and not tried[1 - rank].exists():  # whoever does not wait comes too early
            time.sleep(0.01)
        return torch_save(what, to, *args, **kwargs)

    torch.save = watched
    dist.barrier()
    try:
        save(state, os.fspath(path))
    finally:
        torch.save = torch_save
    try:
        loaded = torch.equal(torch.load(path)["weights"], state["weights"])
    except Exception:
        loaded = False
    tried[rank].touch()
    dist.barrier()
    return len(written), any(written), loaded


def same(one, other) -> bool:
    """Whether two paths name one file; a buffer in memory names none."""
    from pathlib import Path

    return isinstance(one, str | Path) and Path(one).resolve() == Path(other).resolve()


def run(save):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        results = on_ranks(one_rank, 2, save, folder, random.randrange(10**6), env=ONE_A_NODE)
    yield expect_equal("files written, by rank", [count for count, *_ in results], [1, 0],
                       note="One rank of all writes, the global rank 0. LOCAL_RANK is 0 once on every node.")
    yield expect_equal("the old checkpoint stays until the new one is whole", any(own for _, own, _ in results), False,
                       note="A run that dies while it writes leaves half a file under that name. os.replace takes "
                            "another one's place at once.")
    yield expect_equal("every rank can load it on return", [loaded for *_, loaded in results], [True, True],
                       note="What makes a rank wait until another one is done?")


def everyone(state, path):
    import torch
    import torch.distributed as dist

    torch.save(state, path)
    dist.barrier()


def local_rank(state, path):
    import os

    import torch
    import torch.distributed as dist

    if dist.get_node_local_rank() == 0:
        new = f"{path}.{dist.get_rank()}"
        torch.save(state, new)
        os.replace(new, path)
    dist.barrier()


def no_barrier(state, path):
    import os

    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)


def in_place(state, path):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def barrier_of_one(state, path):
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.save(state, path)
        dist.barrier()


BROKEN = {"every rank writes": (everyone, "the global rank 0"),
          "the local rank 0 writes": (local_rank, "LOCAL_RANK is 0 once on every node"),
          "no barrier": (no_barrier, "What makes a rank wait"),
          "in place": (in_place, "half a file"),
          "only the writer waits": (barrier_of_one, "on 2 ranks")}
