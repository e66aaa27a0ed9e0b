"""Ranks simulated in one process: the numbers of real ones."""

import pytest
import torch
import torch.distributed as dist

from gpucourse import ranks
from gpucourse.errors import BadInput


def collectives():
    rank = ranks.by_rank(lambda rank: torch.tensor([float(rank), 10.0 + rank]))
    total, gathered, scattered = rank.clone(), torch.empty(4), torch.empty(1)
    dist.all_reduce(total)
    dist.all_gather_into_tensor(gathered, rank)
    dist.reduce_scatter_tensor(scattered, rank)
    from_one = rank.clone()
    dist.broadcast(from_one, 1)
    exchanged = torch.empty(2)
    dist.all_to_all_single(exchanged, rank)
    return {"total": total, "gathered": gathered, "rest": [scattered, from_one, exchanged], "n": dist.get_world_size()}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_collectives_give_what_real_ranks_give():
    simulated, real = ranks.simulate(collectives, 2), ranks.run(collectives, 2)
    assert len(simulated) == len(real) == 2
    for one, other in zip(simulated, real, strict=True):
        assert one["n"] == other["n"] == 2
        assert torch.equal(one["total"], other["total"]) and torch.equal(one["gathered"], other["gathered"])
        for got, wanted in zip(one["rest"], other["rest"], strict=True):
            assert torch.equal(got, wanted)
    assert not torch.equal(simulated[0]["rest"][0], simulated[1]["rest"][0])


def test_dtensors_multiply_on_64_ranks():
    torch.manual_seed(0)
    a, b = torch.randn(128, 32, dtype=torch.float64), torch.randn(32, 8, dtype=torch.float64)

    def multiply():
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        mesh = init_device_mesh("cpu", (64,))
        rows = distribute_tensor(a, mesh, [Shard(0)])
        return rows @ distribute_tensor(b, mesh, [Replicate()])

    parts = ranks.simulate(multiply, 64)
    assert len(parts) == 64 and all(part.shape == (2, 8) for part in parts)
    assert torch.allclose(torch.cat(parts), a @ b, rtol=1e-12, atol=0)


def test_counting_sees_what_one_rank_sends():
    def work():
        with ranks.counting() as seen:
            dist.all_reduce(ranks.by_rank(lambda rank: torch.full((8,), float(rank))))
        return seen

    seen = ranks.simulate(work, 8)[3]
    assert seen.count("all-reduce") == 1 and seen.sent() == 2 * 7 / 8 * 32


def test_nothing_is_left_and_errors_pass():
    def fail():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        ranks.simulate(fail, 4)
    assert not dist.is_initialized()
    assert ranks.simulate(lambda a, b: a + b, 3, 1, b=2) == [3, 3, 3]


def test_bad_input():
    with pytest.raises(BadInput, match="ranks is 0"):
        ranks.simulate(print, 0)
    with pytest.raises(BadInput, match="was given NoneType, not a function"):
        ranks.simulate(None, 2)
    dist.init_process_group("fake", store=__import__("torch").distributed.HashStore(), rank=0, world_size=2)
    try:
        with pytest.raises(BadInput, match="has a process group"):
            ranks.simulate(print, 2)
    finally:
        dist.destroy_process_group()
