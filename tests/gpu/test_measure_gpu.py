"""What only a GPU can show of the measuring room."""

import pytest
import torch

from gpucourse import measure, watch
from gpucourse.catalog import MiB
from gpucourse.errors import BudgetExceeded

pytestmark = [pytest.mark.gpu,
              pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none")]


def training(width=1024, depth=8):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(64, width, device="cuda")

    def step():
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_the_gpu_comes_first_and_as_torch_reports_it():
    gpu = measure.devices()[0]
    assert (gpu.kind, gpu.torch, gpu) == ("cuda", "cuda:0", measure.device())
    assert gpu.capacity == torch.cuda.get_device_properties(0).total_memory
    assert gpu.bf16 == torch.cuda.is_bf16_supported(including_emulation=False)
    assert measure.devices()[-1].kind == "cpu"


def test_the_driver_sees_at_least_what_this_process_holds():
    held = torch.ones(64 * MiB // 4, device="cuda")
    reading = measure.nvml.DriverMonitor(measure.device().uuid).read()
    if reading.used is None:
        pytest.skip("this driver does not report memory in use")
    assert held.nbytes <= reading.used <= reading.total


def test_timing_waits_for_the_gpu():
    a = torch.randn(4096, 4096, device="cuda")
    one = measure.timed(lambda a: a @ a, a, repeats=10)
    ten = measure.timed(lambda a: [a @ a for _ in range(10)], a, repeats=10)
    assert one.device == measure.device().label
    assert ten.seconds > 5 * one.seconds


def test_ceilings_have_tf32_and_the_way_to_the_host():
    before = torch.get_float32_matmul_precision()
    found = measure.ceilings()
    assert {"fp32", "tf32", "bf16", "fp16", "fp64"} <= set(found.flops)
    assert {"host → device, pinned", "device → host, pinned"} <= set(found.bandwidth)
    assert torch.get_float32_matmul_precision() == before


def test_a_budget_refuses_and_the_limit_goes():
    model, optimizer, step = training()
    step()
    with pytest.raises(BudgetExceeded, match="CUDA out of memory"), measure.budget(256 * MiB, model, optimizer):
        kept = [torch.ones(32 * MiB // 4, device="cuda") for _ in range(20)]
        del kept
    measure.release()
    kept = [torch.ones(32 * MiB // 4, device="cuda") for _ in range(20)]
    assert len(kept) == 20
    step()


def test_a_watched_loop_reports_the_allocators_peak(capsys):
    _, _, step = training()
    step()
    with watch("training") as w:
        for _ in range(5):
            step()
            w.step(64)
        peak = torch.cuda.max_memory_allocated()
    figure = w.readings().figures[0]
    assert (figure.name, figure.value) == ("peak allocated", peak / 1024**3)
    assert "allocated by PyTorch" in capsys.readouterr().out
