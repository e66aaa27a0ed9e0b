"""Ranks where there are GPUs: from a process that uses CUDA already, over NCCL, with tensors that come back."""

import pytest
import torch

from gpucourse import measure, ranks

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device; this machine has none")]


def reduced():
    """What a rank has of its device, its backends and two all-reduces."""
    import torch
    import torch.distributed as dist

    on_gpu = torch.full((1000,), 1.0 + dist.get_rank(), device="cuda")
    on_cpu = torch.full((1000,), 1.0 + dist.get_rank())
    for tensor in (on_gpu, on_cpu):
        dist.all_reduce(tensor)
    return torch.cuda.current_device(), str(dist.get_backend_config()), on_gpu, on_cpu


def test_a_process_that_uses_cuda_launches_ranks_that_use_it():
    square = torch.randn(1024, 1024, device="cuda")
    (square @ square).sum().item()  # CUDA is up, and a forked copy of this process could not use it
    ((device, backends, on_gpu, on_cpu),) = ranks.run(reduced, 1)
    assert device == 0 and "nccl" in backends and "gloo" in backends
    assert on_gpu.device.type == on_cpu.device.type == "cpu"
    assert torch.equal(on_gpu, torch.ones(1000)) and torch.equal(on_cpu, torch.ones(1000))


@pytest.mark.skipif(GPUS < 2, reason="needs 2 CUDA devices")
def test_each_rank_has_a_gpu_of_its_own_and_they_talk_over_nccl():
    results = ranks.run(reduced, GPUS)
    total = torch.full((1000,), GPUS * (GPUS + 1) / 2)
    assert [device for device, *_ in results] == list(range(GPUS))
    assert all(torch.equal(on_gpu, total) and torch.equal(on_cpu, total) for *_, on_gpu, on_cpu in results)


def test_more_ranks_than_gpus_talk_over_gloo_on_the_cpu():
    def backend():
        import torch.distributed as dist

        return dist.get_backend()

    assert ranks.run(backend, GPUS + 1) == ["gloo"] * (GPUS + 1)


def test_neither_this_process_nor_the_server_holds_gpu_memory_for_ranks():
    def fill():
        import torch

        return torch.ones(1 << 26, device="cuda").sum().item()

    ranks.run(fill, 1)
    before = measure.device().available
    assert ranks.run(fill, 1) == [float(1 << 26)]
    assert measure.device().available >= before - (16 << 20)
