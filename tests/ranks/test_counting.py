"""What is counted: kinds, bytes of buffers, bytes that a rank sends; on gloo, over a paced link, and simulated."""

import pytest

from gpucourse import ranks
from gpucourse.errors import BadInput

N, FLOATS = 2, 24
BYTES = 4 * FLOATS


def every_call():
    """Each call once, on two ranks, with buffers of FLOATS floats in all: (kind, size, sent), in order."""
    import warnings

    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    warnings.simplefilter("ignore")  # names that newer versions of torch have replaced
    rank, n, f = dist.get_rank(), dist.get_world_size(), 24
    whole, half = torch.ones(f), torch.ones(f // 2)
    with ranks.counting() as seen:
        dist.all_reduce(whole)
        dist.all_reduce(whole, async_op=True).wait()
        dist.broadcast(whole, 0)
        dist.reduce(whole, 0)
        dist.all_gather([torch.empty(f // 2) for _ in range(n)], half)
        dist.all_gather_into_tensor(whole, half)
        dist.reduce_scatter_tensor(half, whole)
        dist.all_to_all_single(torch.empty(f), whole)
        dist.all_to_all_single(torch.empty(f), whole, [f // 2] * n, [f // 2] * n)
        dist.gather(half, [torch.empty(f // 2) for _ in range(n)] if rank == 0 else None, 0)
        dist.scatter(half, [half.clone() for _ in range(n)] if rank == 0 else None, 0)
        dist.barrier()
        if rank == 0:
            dist.send(whole, 1)
        else:
            dist.recv(whole, 0)
        functional.all_reduce(whole, "sum", dist.group.WORLD) + 0
        functional.all_gather_tensor(half, 0, dist.group.WORLD) + 0
        functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD) + 0
        functional.all_to_all_single(whole, [f // 2] * n, [f // 2] * n, dist.group.WORLD) + 0
    dist.all_reduce(whole)  # after the block: not counted
    return [(call.kind, call.size, call.sent) for call in seen.calls], {call.ranks for call in seen.calls}


def expected(rank: int) -> list[tuple[str, float, float]]:
    half = BYTES / 2  # of two ranks: what an all-gather, reduce-scatter or all-to-all sends
    last = ("send", BYTES, BYTES) if rank == 0 else ("receive", BYTES, 0)
    return [
        ("all-reduce", BYTES, BYTES), ("all-reduce", BYTES, BYTES), ("broadcast", BYTES, BYTES),
        ("reduce", BYTES, BYTES), ("all-gather", BYTES, half), ("all-gather", BYTES, half),
        ("reduce-scatter", BYTES, half), ("all-to-all", BYTES, half), ("all-to-all", BYTES, half),
        ("gather", BYTES, 0 if rank == 0 else half), ("scatter", BYTES, half if rank == 0 else 0), ("barrier", 0, 0),
        last, ("all-reduce", BYTES, BYTES), ("all-gather", BYTES, half), ("reduce-scatter", BYTES, half),
        ("all-to-all", BYTES, half)]


@pytest.mark.parametrize("link", [None, "10:10"])
def test_every_call_is_counted_once(link):
    for rank, (calls, sizes) in enumerate(ranks.run(every_call, N, link=link)):
        assert calls == expected(rank)
        assert sizes == {N}


def test_a_hand_written_ring_sends_its_share():
    def ring(floats):
        import torch
        import torch.distributed as dist

        rank, n = dist.get_rank(), dist.get_world_size()
        chunks = [*torch.full((floats,), float(rank)).chunk(n)]
        with ranks.counting() as seen:
            for step in range(2 * (n - 1)):
                mine, theirs = (rank - step) % n, (rank - step - 1) % n
                got = torch.empty_like(chunks[theirs])
                sending = dist.isend(chunks[mine], (rank + 1) % n)
                dist.recv(got, (rank - 1) % n)
                sending.wait()
                chunks[theirs] = chunks[theirs] + got if step < n - 1 else got
        return torch.cat(chunks), seen

    n, floats = 3, 30
    for total, seen in ranks.run(ring, n, floats):
        assert total.tolist() == [float(sum(range(n)))] * floats
        assert seen.sent() == seen.sent("send") == 2 * (n - 1) / n * 4 * floats
        assert seen.count("send") == seen.count("receive") == 2 * (n - 1)
        assert seen.count("all-reduce") == seen.sent("all-reduce") == 0


def test_an_uneven_exchange_counts_what_leaves_the_rank():
    def exchange():
        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        sends = [[1, 5], [2, 4]]
        receives = [sends[0][rank], sends[1][rank]]
        with ranks.counting() as seen:
            dist.all_to_all_single(torch.empty(sum(receives)), torch.ones(6), receives, sends[rank])
        return seen.sent(), seen.size()

    assert ranks.run(exchange, 2) == [(20, 24), (8, 24)]


@pytest.mark.parametrize("link", [None, "10:10"])
def test_ddp_and_fsdp_are_counted(link, loaded):
    def train(sharded):
        import torch
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(3)])
        if sharded:
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        with ranks.counting() as seen:
            model(torch.ones(2, 16)).sum().backward()
        return seen

    for seen in ranks.run(train, 2, False, link=link):
        assert (seen.count("all-reduce"), seen.size("all-reduce")) == (1, 3 * 16 * 16 * 4)
    for seen in ranks.run(train, 2, True, link=link):
        assert (seen.count("all-gather"), seen.size("all-gather")) == (6, 2 * 3 * 16 * 16 * 4)
        assert (seen.count("reduce-scatter"), seen.sent("reduce-scatter")) == (3, 3 * 16 * 16 * 4 / 2)


def test_a_kind_that_does_not_exist_is_refused():
    from gpucourse.ranks.traffic import Traffic

    with pytest.raises(BadInput, match="kind of call 'allreduce' is not known; did you mean all-reduce"):
        Traffic([]).count("allreduce")
