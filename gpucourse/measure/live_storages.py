"""A ledger of the storages that are alive while it is entered: bytes now, at the peak, and by tag."""

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator

import torch
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Counts each storage once, from the operation that makes it until its last reference dies.

    Works on real and on fake tensors. Subclasses override `tag` and `changed`.

    live, peak: bytes. by_tag: {tag: bytes now}. operation: the operation being counted, as a name.
    """

    def __init__(self):
        super().__init__()
        self.live = 0
        self.peak = 0
        self.by_tag: Counter[Hashable] = Counter()
        self.operation = ""
        self._held: dict[int, tuple[weakref.ref, int, Hashable]] = {}

    def tag(self, func) -> Hashable:
        """What a storage that `func` has just made is counted under."""
        return "other"

    def changed(self) -> None:
        """Called each time that `live` has risen; may raise."""

    def own(self, *things: torch.nn.Module | torch.optim.Optimizer | torch.Tensor, tag: Hashable = None) -> None:
        """Count what exists already; what is counted already moves to its new tag.

        Without `tag`, a module is counted under weights (buffers too) and gradients, an optimizer's state under
        optimizer, a tensor under other.
        """
        before, self.operation = self.live, "what existed before"
        for thing in things:
            for tensor, kind in tensors_of(thing):
                self.retag(tensor, kind if tag is None else tag)
        self._settle(before)

    def retag(self, tensor: torch.Tensor, tag: Hashable) -> None:
        """Count the tensor's storage under `tag` from now on."""
        for storage in storages_of(tensor):
            self._hold(storage, tag)

    def __enter__(self):
        self._fake = active_fake_mode()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._watched_resize()  # no dispatch mode sees a storage resized in place
        return super().__enter__()

    def __exit__(self, *exception):
        torch.UntypedStorage.resize_ = self._resize
        return super().__exit__(*exception)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # By name: importing DTensor costs half a second. Its local tensors come by next.
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if active_fake_mode() is not self._fake:
            return result  # DTensor trying out shapes on fake tensors: nothing is allocated
        before, self.operation = self.live, str(func)
        tag = self.tag(func)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                for storage in storages_of(leaf):
                    self._hold(storage, self._tag_now(storage, tag))
        try:
            self._settle(before)
        except BaseException:
            result = leaf = storage = args = kwargs = None  # or the traceback would keep them alive
            raise
        return result

    def _tag_now(self, storage: torch.UntypedStorage, new: Hashable) -> Hashable:
        held = self._held.get(storage._cdata)
        return new if held is None else held[2]

    def _hold(self, storage: torch.UntypedStorage, tag: Hashable) -> None:
        key, size = storage._cdata, storage.nbytes()
        held = self._held.get(key)
        if held is not None and held[1:] == (size, tag):
            return
        if held is not None:
            self._drop(key)
        self._held[key] = (weakref.ref(storage, lambda _: self._drop(key)), size, tag)
        self.live += size
        self.by_tag[tag] += size

    def _drop(self, key: int) -> None:
        _, size, tag = self._held.pop(key)
        self.live -= size
        self.by_tag[tag] -= size

    def _settle(self, before: int) -> None:
        if self.live > before:
            self.peak = max(self.peak, self.live)
            self.changed()

    def _watched_resize(self):
        resize = self._resize

        def resize_(storage, size):
            resize(storage, size)
            if storage._cdata in self._held:
                before, self.operation = self.live, "UntypedStorage.resize_"
                self._hold(storage, self._tag_now(storage, None))
                self._settle(before)
            return storage

        return resize_


def tensors_of(thing: torch.nn.Module | torch.optim.Optimizer | torch.Tensor) -> Iterator[tuple[torch.Tensor, str]]:
    """(tensor, category) for all that a module, an optimizer or a tensor holds; gradients included."""
    if isinstance(thing, torch.nn.Module):
        yield from ((parameter, "weights") for parameter in thing.parameters())
        yield from ((buffer, "weights") for buffer in thing.buffers())
        yield from ((p.grad, "gradients") for p in thing.parameters() if p.grad is not None)
    elif isinstance(thing, torch.optim.Optimizer):
        state = (value for entry in thing.state.values() for value in entry.values())
        yield from ((value, "optimizer") for value in state if isinstance(value, torch.Tensor))
    else:
        yield thing, "other"


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages under a tensor, also through wrapper subclasses such as DTensor."""
    if is_traceable_wrapper_subclass(tensor):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for part in parts:
            if isinstance(part, torch.Tensor):  # DTensor names its mesh too
                yield from storages_of(part)
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    else:
        yield from (part.untyped_storage() for part in (tensor._indices(), tensor._values()))
