"""Expected answer of 06.5: the largest batch that keeps a promise, under the load that the lesson measured."""

from types import SimpleNamespace

from gpucourse.predict.admission import reserving
from gpucourse.predict.requests import drawn
from gpucourse.predict.served import between
from gpucourse.predict.simulation import simulate

CAPS = (1, 2, 4, 8, 16, 32)


def runs(load) -> dict:
    return {cap: simulate(load.requests, between(load.prefill), between(load.decode), cap, load.blocks, 16, reserving)
            for cap in CAPS}


def largest_cap(load, percent: float = 99, what: str = "pace") -> int:
    """The largest cap whose percentile keeps to the target; with no percentile, by the mean."""
    return max(cap for cap, run in runs(load).items() if run.at(what, percent) <= load.target)


def fastest_cap(load) -> int:
    every = runs(load)
    return max(every, key=lambda cap: every[cap].tokens_per_second)


def example_load():
    load = SimpleNamespace(decode={1: 0.005, 2: 0.006, 4: 0.007, 8: 0.009, 16: 0.014, 32: 0.024},
                           prefill={64: 0.02, 512: 0.15}, blocks=1000,
                           requests=drawn(80, 9.0, (16, 128), (16, 96), 0), target=0.0)
    paces = [run.at("pace", 99) for run in runs(load).values()]
    load.target = (paces[0] + paces[-1]) / 2
    return load
