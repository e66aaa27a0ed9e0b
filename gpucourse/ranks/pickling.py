"""Functions and tensors as bytes for another process.

cloudpickle sends a notebook's functions by value, but forgets which cell they are from: here they keep it, so that a
traceback can name it. Tensors travel beside the pickle, uncopied, and arrive on the CPU.
"""

import io
import pickle
import sys
import types
from collections import ChainMap

import cloudpickle


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, with the file name of code and with tensors as out-of-band buffers."""

    dispatch_table = ChainMap({types.CodeType: lambda code: _code(code)}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, obj):
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and _plain(torch, obj):
            return _tensor(torch, obj)
        return super().reducer_override(obj)


def pack(obj: object) -> list:
    """Frames: a pickle, then the buffers that it refers to. Raises whatever pickling `obj` raises."""
    file, buffers = io.BytesIO(), []
    Pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)]


def unpack(frames: list) -> object:
    """The object that `pack` was given; tensors and arrays use the frames' memory."""
    return pickle.loads(frames[0], buffers=frames[1:])


def _code(code: types.CodeType):
    make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    forgotten = [place for place, arg in enumerate(args) if arg == "<dynamic-code>"]
    return make, tuple(code.co_filename if place in forgotten else arg for place, arg in enumerate(args))


def _plain(torch, tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda") and not tensor.is_quantized


def _tensor(torch, tensor):
    """A tensor without its history: what arrives is a leaf. A view is sent as what it shows, not as what it shares."""
    data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    payload = pickle.PickleBuffer(data.reshape(-1).view(torch.uint8).numpy())
    return _rebuild, (payload, tensor.dtype, tuple(tensor.shape), tensor.requires_grad and tensor.is_leaf)


def _rebuild(payload, dtype, shape, requires_grad):
    import torch

    flat = torch.frombuffer(payload, dtype=dtype) if len(payload) else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).requires_grad_(requires_grad)
