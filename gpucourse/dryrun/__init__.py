"""The lessons' networks on fake tensors: what a step would hold, without holding it."""

from gpucourse.dryrun.memory import memory

__all__ = ["memory"]
