"""The devices of this machine, as PyTorch can use them."""

import functools
import os
import time
from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True)
class Device:
    """One device.

    label: how figures name it, e.g. `cpu (2 cores)`. torch: PyTorch's name, e.g. `cuda:0`. kind: cpu, cuda or mps.
    capacity: bytes as PyTorch can use them. available: bytes free now. cores: CPU cores this process may use, or a
    GPU's multiprocessors. bf16: bf16 products run in hardware, not by emulation. note: what to know before using it.
    """

    label: str
    torch: str
    kind: str
    capacity: int
    available: int
    cores: int
    bf16: bool
    capability: tuple[int, int] | None = None
    uuid: str = ""
    note: str = ""


def devices() -> tuple[Device, ...]:
    """Every device, GPUs first, the CPU last. Starts CUDA only where there is a GPU."""
    gpus = tuple(_gpu(index) for index in range(gpu_count()))
    return (*gpus, *_mps(), _cpu())


def device() -> Device:
    """The device that lessons use: the first GPU, else the CPU."""
    return _gpu(0) if gpu_count() else _cpu()


def gpu_count() -> int:
    """How many GPUs PyTorch can use. Asks the driver where it can, so CUDA is not started."""
    return torch.cuda.device_count()


def device_of(*things) -> Device:
    """The device of the first tensor, or module with parameters, among `things`; else the GPU if CUDA was started."""
    for thing in things:
        tensors = thing.parameters() if isinstance(thing, torch.nn.Module) else (thing,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                return _gpu(tensor.device.index or 0) if tensor.device.type == "cuda" else _cpu()
    return _gpu(torch.cuda.current_device()) if torch.cuda.is_initialized() else _cpu()


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def synchronize() -> None:
    """Wait for the GPU's queue to be empty; nothing to do where CUDA was never started."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _cpu() -> Device:
    memory, cores, threads = psutil.virtual_memory(), usable_cores(), torch.get_num_threads()
    return Device(f"cpu ({cores} core{'s' if cores > 1 else ''})", "cpu", "cpu", memory.total, memory.available, cores,
                  cpu_runs_bf16(), note=f"PyTorch uses {threads} thread{'s' if threads > 1 else ''}")


def _gpu(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    free, _ = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device(properties.name, f"cuda:{index}", "cuda", properties.total_memory, free,
                  properties.multi_processor_count, bf16, (properties.major, properties.minor),
                  f"GPU-{properties.uuid}")


def _mps() -> tuple[Device, ...]:
    if not torch.backends.mps.is_available():
        return ()
    memory = psutil.virtual_memory()
    return (Device("Apple GPU (mps)", "mps", "mps", torch.mps.recommended_max_memory(), memory.available, 0, False,
                   note="PyTorch has no torch.distributed and no memory statistics on mps: lessons use the CPU here"),)


@functools.cache
def cpu_runs_bf16() -> bool:
    """Whether bf16 products on the CPU are not several times slower than fp32's, as measured on a small one.

    The CPU's flags do not tell: libraries may be told to ignore an instruction set (ONEDNN_MAX_CPU_ISA).
    """
    return _product_seconds(torch.bfloat16) < 3 * _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    a = torch.ones(256, 256, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return best
