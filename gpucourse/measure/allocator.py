"""What PyTorch's caching allocator holds on a GPU: allocated, reserved, used on the device, and its free pieces."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from gpucourse.catalog.units import GiB
from gpucourse.errors import Missing
from gpucourse.evidence import Readings, column
from gpucourse.measure.devices import device


@dataclass(frozen=True)
class Allocator:
    """Bytes. used: by all processes on the card. largest_free: the largest piece that is reserved and not allocated."""

    allocated: int
    reserved: int
    used: int
    capacity: int
    largest_free: int
    device: str

    def readings(self) -> Readings:
        names = dict(allocated=self.allocated, reserved=self.reserved, **{"device used": self.used},
                     **{"largest free piece": self.largest_free}, capacity=self.capacity)
        return column("measured", {name: size / GiB for name, size in names.items()}, "GiB", self.device)


def allocator() -> Allocator:
    """The three totals and the largest free piece, now. Raises Missing without a CUDA device."""
    here = device()
    if here.kind != "cuda":
        raise Missing("the caching allocator's figures need 1 GPU (this machine has 0)")
    free, capacity = torch.cuda.mem_get_info(here.torch)
    return Allocator(torch.cuda.memory_allocated(here.torch), torch.cuda.memory_reserved(here.torch), capacity - free,
                     capacity, max(free_pieces(torch.cuda.memory_snapshot()), default=0), here.label)


def free_pieces(segments: Iterable[Mapping]) -> list[int]:
    """Sizes of the blocks that are reserved and hold no tensor, from torch.cuda.memory_snapshot()."""
    return [block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "inactive"]
