"""What autograd saves for backward, counted by its own hooks."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from gpucourse.measure.live_storages import storages_of, tensors_of


class SavedTensors(saved_tensors_hooks):
    """Counts each storage that is saved while it is entered, once.

    given: modules and tensors that exist anyway and are not counted: weights, tables. bytes: the sum. shapes: the shape
    of the tensor through which each storage was first saved, with its bytes. `note` takes a tensor that something other
    than autograd keeps for backward, such as a checkpoint policy.
    """

    def __init__(self, *given: torch.nn.Module | torch.Tensor):
        super().__init__(self.note, lambda tensor: tensor)
        self._given = {storage._cdata for thing in given for tensor, _ in tensors_of(thing)
                       for storage in storages_of(tensor)}
        self._saved: dict[int, tuple[tuple[int, ...], int]] = {}

    def __enter__(self) -> "SavedTensors":
        super().__enter__()
        return self

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        for storage in storages_of(tensor):
            if storage._cdata not in self._given:
                self._saved.setdefault(storage._cdata, (tuple(tensor.shape), storage.nbytes()))
        return tensor

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self._saved.values())

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], int]]:
        return list(self._saved.values())
