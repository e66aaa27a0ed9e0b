"""A memory budget that refuses: as on a card of that size, the operation that would not fit raises."""

import math

import torch

from gpucourse.catalog.units import bytes_text
from gpucourse.errors import BadInput, BudgetExceeded
from gpucourse.measure.devices import device_of
from gpucourse.measure.live_storages import LiveStorages


def budget(limit_bytes: float, *owned) -> "Budget | CudaBudget":
    """A context manager that raises BudgetExceeded when live tensors pass the limit.

    It has `.live`, `.peak` and `.limit`, in bytes. owned: modules, optimizers and tensors that exist already and are to
    be counted. On a CPU, and on fake tensors, every tensor made inside is counted by its storage. On a GPU, where
    `owned` lie there, the allocator is limited.
    After a raise inside `optimizer.step()` parameters and state are half updated: load them again.
    """
    limit = limit_in_bytes(limit_bytes)
    on_gpu = owned and device_of(*owned).kind == "cuda"
    return CudaBudget(limit, device_of(*owned).torch) if on_gpu else Budget(limit, *owned)


def limit_in_bytes(limit: float) -> int:
    """A budget as whole bytes, or BadInput."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not math.isfinite(limit) or limit < 1:
        raise BadInput(f"the budget is {limit!r}; it must be a number of bytes of at least 1, e.g. 1.5 * GiB")
    return int(limit)


class Budget(LiveStorages):
    """Counts storages, on CPU or fake tensors."""

    def __init__(self, limit: int, *owned):
        super().__init__()
        self.limit = limit
        self.own(*owned)

    def changed(self) -> None:
        if self.live > self.limit:
            over = self.live - self.limit
            raise BudgetExceeded(refusal(f"{self.operation}, {over:,} byte{'s' if over > 1 else ''} over",
                                         self.live, self.limit))


class CudaBudget:
    """Limits PyTorch's allocator on one GPU."""

    def __init__(self, limit: int, device: str):
        self.limit, self._device = limit, device

    @property
    def live(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def __enter__(self) -> "CudaBudget":
        total = torch.cuda.get_device_properties(self._device).total_memory
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit / total), self._device)
        return self

    def __exit__(self, kind, error, trace) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            said = str(error).split(". GPU", 1)[0]
            raise BudgetExceeded(refusal(said, self.live, self.limit)) from error


def refusal(what: str, live: int, limit: int) -> str:
    """What a refused budget says."""
    return (f"{what}: {bytes_text(live)} live, the budget is {bytes_text(limit)}; make the batch smaller, recompute, "
            "or raise the budget")
