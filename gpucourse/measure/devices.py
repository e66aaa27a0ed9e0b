"""The devices of this machine, as PyTorch can use them."""

import os
from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True)
class Device:
    """One device.

    label: how figures name it, e.g. `cpu (2 cores)`. torch: PyTorch's name, e.g. `cuda:0`. kind: cpu, cuda or mps.
    capacity: bytes as PyTorch can use them. available: bytes free now. cores: CPU cores this process may use, or a
    GPU's multiprocessors. bf16: bf16 products are not emulated. note: what to know before using it.
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


def cpu_runs_bf16() -> bool:
    """Whether PyTorch's CPU library takes bf16 products; without it they run tens of times slower than fp32's.

    Unlike the CPU's flags, this honours ONEDNN_MAX_CPU_ISA.
    """
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
