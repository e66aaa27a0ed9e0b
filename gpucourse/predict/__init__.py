"""Closed-form predictions: pure arithmetic, no torch."""

from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters

__all__ = ["memory", "parameters"]
