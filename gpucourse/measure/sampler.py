"""What the live chart reads from a training loop that runs: memory by category, the total, and the phase."""

import contextlib
import gc
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

import psutil
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpucourse.errors import BadInput
from gpucourse.measure.devices import device_of
from gpucourse.measure.live_storages import storages_of
from gpucourse.measure.nvml import DriverMonitor
from gpucourse.measure.release import forget_frames, release

WALK = 0.05  # seconds between two walks, at least: the chart could not show more


def sampler(model: torch.nn.Module | None = None) -> "Sampler":
    """A sampler for the device that `model` is on; without one, the GPU if CUDA was started, else the CPU.

    Used as a context manager around the loop. Optimizers, and the weights that they train, are found when they first
    step; `model` adds weights that no optimizer trains.
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise BadInput(f"model is {type(model).__name__}; it must be a torch.nn.Module, or be left out")
    where = device_of(model)
    return CudaSampler(model, where) if where.kind == "cuda" else CpuSampler(model, where)


class Sampler(ABC):
    """The part that is the same on every device.

    device: its label. memory_is: what `total` counts. phases: (seconds on time.perf_counter, phase) as each begins.
    parts: bytes of weights, optimizer state and gradients, as last walked.
    `tick` walks tensors, so it is for the thread that trains: a gradient read in another thread, even
    `p.grad is None`, corrupts the heap. All else are integers, for any thread. When the loop ends by an exception, what
    its frames held is released.
    """

    memory_is: str
    peak_is: str

    def __init__(self, model, where):
        self.device = where.label
        self.phases: deque[tuple[float, str]] = deque(maxlen=160)
        self._model = model
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.parts = (0, 0, 0)
        self._walked = 0.0

    def __enter__(self):
        self._hooks = contextlib.ExitStack()
        self._keep(register_optimizer_step_pre_hook(self._before_optimizer))
        self._keep(register_optimizer_step_post_hook(self._after_optimizer))
        self._seek = register_module_forward_pre_hook(self._first_forward)
        self._keep(self._seek)
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._hooks.close()
        self._optimizers.clear()
        self._model = None
        if error is not None:
            forget_frames(error)
            release()

    def tick(self) -> None:
        """A step has ended. Walk where there is no optimizer whose steps say when the gradients are there."""
        if not self._optimizers:
            self._walk_if_due()

    @abstractmethod
    def total(self) -> int:
        """Bytes in all, now."""

    def peak(self) -> int:
        """The highest total that the device itself has kept, 0 where it keeps none."""
        return 0

    def lines(self) -> dict[str, int]:
        """Other totals, in bytes, to be drawn as lines."""
        return {}

    def _keep(self, handle) -> None:
        self._hooks.callback(handle.remove)

    def _first_forward(self, module, args) -> None:
        """The first module to run is taken for the model. Hooks on all modules would slow each call of each."""
        self._seek.remove()
        self._phase("forward")
        if self._model is None:
            self._model = module
            self._walk()
        self._keep(module.register_forward_pre_hook(lambda *_: self._phase("forward")))
        self._keep(module.register_forward_hook(lambda *_: self._phase("backward" if torch.is_grad_enabled() else "")))

    def _before_optimizer(self, optimizer, args, kwargs) -> None:
        self._phase("step")

    def _after_optimizer(self, optimizer, args, kwargs) -> None:
        # Here the gradients are still there, whatever the loop does next.
        if optimizer in self._optimizers:
            self._walk_if_due()
        else:
            self._optimizers.add(optimizer)
            self._walk()
        self._phase("")

    def _phase(self, name: str) -> None:
        self.phases.append((time.perf_counter(), name))

    def _walk_if_due(self) -> None:
        if time.perf_counter() - self._walked >= WALK:
            self._walk()

    def _walk(self) -> None:
        parameters = dict.fromkeys(self._parameters())
        states = (value for o in self._optimizers for entry in o.state.values() for value in entry.values())
        gradients = (p.grad for p in parameters)
        self.parts = (nbytes(parameters), nbytes(states), nbytes(gradients))
        self._walked = time.perf_counter()

    def _parameters(self) -> Iterator[torch.Tensor]:
        if self._model is not None:
            yield from self._model.parameters()
            yield from self._model.buffers()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]


class CpuSampler(Sampler):
    """Resident memory of this process, less what it was at the start without its tensors."""

    memory_is = "resident, above Python's own"
    peak_is = "peak resident"

    def __enter__(self):
        self._process = psutil.Process()
        self._start = self._process.memory_info().rss - tensors_alive()
        return super().__enter__()

    def total(self) -> int:
        return max(0, self._process.memory_info().rss - self._start)


class CudaSampler(Sampler):
    """The caching allocator's and the driver's figures for one GPU. No phases: the CPU runs ahead of the GPU."""

    memory_is = "allocated by PyTorch"
    peak_is = "peak allocated"

    def __init__(self, model, where):
        super().__init__(model, where)
        self._torch = where.torch
        self._driver = DriverMonitor(where.uuid)

    def __enter__(self):
        torch.cuda.reset_peak_memory_stats(self._torch)
        return super().__enter__()

    def tick(self) -> None:
        torch.cuda.synchronize(self._torch)  # or the steps' times would be those of their launches
        super().tick()

    def total(self) -> int:
        return torch.cuda.memory_allocated(self._torch)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._torch)

    def lines(self) -> dict[str, int]:
        lines = {"reserved": torch.cuda.memory_reserved(self._torch), "device used": self._driver.read().used}
        return {name: size for name, size in lines.items() if size is not None}

    def _phase(self, name: str) -> None:
        pass


def nbytes(values) -> int:
    """Bytes of the tensors among `values`."""
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def tensors_alive() -> int:
    """Bytes of the storages of all CPU tensors that Python can see."""
    plain = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    tensors = [tensor for tensor in plain if tensor.device.type == "cpu"]
    tensors += [p.grad for p in tensors if isinstance(p, torch.nn.Parameter) and p.grad is not None]
    return sum({s.data_ptr(): s.nbytes() for tensor in tensors for s in storages_of(tensor)}.values())
