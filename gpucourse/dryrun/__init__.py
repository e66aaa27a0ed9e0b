"""The lessons' networks on fake tensors: what a step would hold, without holding it."""

from torch._subclasses.fake_tensor import FakeTensorMode as fake

from gpucourse.dryrun.memory import memory

__all__ = ["fake", "memory"]
