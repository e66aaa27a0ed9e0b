"""What the NVIDIA driver says about a GPU, each reading or None: drivers, MIG slices and laptops leave some out."""

from collections.abc import Callable
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True)
class DriverReading:
    """used, total: bytes on the whole device, every process and context included. busy: fraction. power: watts."""

    used: int | None = None
    total: int | None = None
    busy: float | None = None
    power: float | None = None


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is no driver. Starts no CUDA."""
    _ask(pynvml.nvmlInit)
    return _ask(pynvml.nvmlSystemGetDriverVersion)


class DriverMonitor:
    """Reads one GPU, named by its UUID, again and again. Starts no CUDA; safe from any thread."""

    def __init__(self, uuid: str):
        _ask(pynvml.nvmlInit)
        self._handle = _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)

    def read(self) -> DriverReading:
        if self._handle is None:
            return DriverReading()
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        milliwatts = _ask(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return DriverReading(
            used=memory.used if memory else None,
            total=memory.total if memory else None,
            busy=busy.gpu / 100 if busy else None,
            power=milliwatts / 1000 if milliwatts is not None else None,
        )


def _ask(question: Callable, *about):
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None
