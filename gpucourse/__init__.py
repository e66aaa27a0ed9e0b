"""gpucourse: predict what a GPU will do, run it, and see the two side by side.

Importing the package loads nothing but this file: each name below is looked up when it is first used.
"""

from importlib import import_module

__version__ = "0.1.0"

# name → (module, attribute); an empty attribute is the module itself
_HOMES = {
    "check": ("gpucourse.exercises", "check"),
    "guess": ("gpucourse.exercises", "guess"),
    "hint": ("gpucourse.exercises", "hint"),
    "solution": ("gpucourse.exercises", "solution"),
    "question": ("gpucourse.exercises", "question"),
    "compare": ("gpucourse.evidence", "compare"),
    "record": ("gpucourse.evidence", "record"),
    "draw": ("gpucourse.live.instants", "instants"),
    "watch": ("gpucourse.live.watching", "watch"),
    "catalog": ("gpucourse.catalog", ""),
    "dryrun": ("gpucourse.dryrun", ""),
    "measure": ("gpucourse.measure", ""),
    "models": ("gpucourse.models", ""),
    "predict": ("gpucourse.predict", ""),
    "ranks": ("gpucourse.ranks", ""),
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'gpucourse' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return [*globals(), *__all__]
