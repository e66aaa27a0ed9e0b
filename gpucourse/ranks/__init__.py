"""Ranks: a notebook's function on real processes, or simulated in one; a paced link; what several machines need."""

from importlib import import_module

# name → module: looked up when first used, so that the kernel loads torch only for what needs it
_HOMES = {"run": "running", "RankError": "report", "span": "timeline", "counting": "counted", "device": "inside",
          "simulate": "simulated", "by_rank": "simulated", "script": "scripts"}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'gpucourse.ranks' has no attribute {name!r}")
    return getattr(import_module(f"gpucourse.ranks.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
