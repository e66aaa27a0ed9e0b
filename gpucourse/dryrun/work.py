"""What a computation has to do: FLOPs and bytes, operation by operation, on fake tensors.

From them, and from a machine's ceilings, follows the least time that each operation can take.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from gpucourse.catalog import Job, Shape
from gpucourse.models import Training


@dataclass(frozen=True)
class Operation:
    """One operation of PyTorch's dispatcher.

    flops: of its matrix products, two for each multiply-add; other arithmetic is not counted.
    bytes: of the tensors that it is given and that it writes, each once. An embedding counts its whole table.
    """

    name: str
    flops: int
    bytes: int


def step(shape: Shape, job: Job) -> tuple[Operation, ...]:
    """The operations of the second training step of (shape, job), in the order in which they are dispatched."""
    with FakeTensorMode():
        training = Training(shape, job)
        training.scaler = torch.amp.GradScaler(enabled=False)  # it asks for values, which fake tensors do not have
        training()
        return operations(training)


def operations(call: Callable[[], object]) -> tuple[Operation, ...]:
    """The operations that `call()` dispatches; under FakeTensorMode none of them computes anything."""
    with _Noting() as noting:
        call()
    return tuple(noting.seen)


class _Noting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(result)
        written = _tensors(_written(func, args, kwargs))
        known = {tensor.untyped_storage()._cdata for tensor in given}
        new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in known]
        if new or written:  # else it is a view: nothing is read or written
            size = sum(tensor.numel() * tensor.itemsize for tensor in (*given, *written, *new))
            self.seen.append(Operation(func._overloadpacket.__name__, _flops(func, args, kwargs, result), size))
        return result


def _tensors(values) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _written(func, args, kwargs) -> list:
    """The arguments that an in-place operation changes."""
    names = [argument.name for argument in func._schema.arguments if argument.is_write]
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    return [given[name] for name in names if name in given]


def _flops(func, args, kwargs, result) -> int:
    packet = func._overloadpacket
    if packet in flop_registry:
        return flop_registry[packet](*args, **kwargs, out_val=result)
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:  # PyTorch counts these on GPUs only
        return sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
    return 0
