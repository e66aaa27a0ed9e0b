"""Closed-form predictions: pure arithmetic, no torch."""

from gpucourse.predict.memory import memory

__all__ = ["memory"]
