"""Counts what a function does to tensors: how often Python asks one for a number, and all operations."""


def looks_at_values():
    """A mode that counts how often Python asks a tensor for a number, and all operations."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looks(TorchDispatchMode):
        looks = operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            self.looks += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **kwargs or {})

    return Looks()
