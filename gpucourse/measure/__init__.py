"""This machine: devices, memory, budget, timing, ceilings, samplers. The only room that calls torch.cuda."""

from gpucourse.measure.allocator import Allocator, allocator
from gpucourse.measure.budget import budget
from gpucourse.measure.ceilings import Ceilings, ceilings
from gpucourse.measure.devices import Device, device, device_of, devices, gpu_count, usable_cores
from gpucourse.measure.live_storages import LiveStorages
from gpucourse.measure.lock import quiet
from gpucourse.measure.memory import memory
from gpucourse.measure.nvml import driver_version
from gpucourse.measure.release import forget_frames, release
from gpucourse.measure.sampler import sampler
from gpucourse.measure.timing import Ratio, Timing, alternate, timed

__all__ = ["Allocator", "Ceilings", "Device", "LiveStorages", "Ratio", "Timing", "allocator", "alternate", "budget",
           "ceilings", "device", "device_of", "devices", "driver_version", "forget_frames", "gpu_count", "memory",
           "quiet", "release", "sampler", "timed", "usable_cores"]
