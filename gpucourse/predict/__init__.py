"""Closed-form predictions: pure arithmetic, no torch."""

from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.predict.plan import plan
from gpucourse.predict.search import search

__all__ = ["memory", "parameters", "plan", "search"]
