"""How long a call takes: the median of several, with its spread, and two calls compared in alternation."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpucourse.catalog.units import seconds_text
from gpucourse.errors import BadInput, positive_int
from gpucourse.evidence import Figure, Readings
from gpucourse.measure.devices import device_of, synchronize
from gpucourse.measure.lock import quiet


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median, the quartiles, the first call apart (it allocates, compiles, fills caches)."""

    name: str
    seconds: float
    low: float
    high: float
    runs: int
    first: float
    device: str
    note: str = ""

    def readings(self) -> Readings:
        return Readings("measured", (Figure(self.name, self.seconds * 1e3, "ms", "measured", self.device, self.note),),
                        self.device)

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return (f"{self.name}: {seconds_text(self.seconds)} (middle half {seconds_text(self.low)} to "
                f"{seconds_text(self.high)}, {self.runs} runs; first call {seconds_text(self.first)}), "
                f"measured on {self.device}{note}")


@dataclass(frozen=True)
class Ratio:
    """How many times as long `a` takes as `b`: the median over the rounds, and the quartiles."""

    value: float
    low: float
    high: float
    rounds: int
    a: Timing
    b: Timing
    device: str
    note: str = ""

    def readings(self) -> Readings:
        name = f"time of {self.a.name} / time of {self.b.name}"
        return Readings("measured", (Figure(name, self.value, "×", "measured", self.device, self.note),), self.device)

    def __str__(self) -> str:
        return (f"{self.a.name} takes {self.value:.3g} × the time of {self.b.name} (middle half {self.low:.3g} to "
                f"{self.high:.3g}, {self.rounds} rounds), measured on {self.device}")


def timed(fn: Callable, *args, repeats: int = 20, warmup: int = 2, name: str = "") -> Timing:
    """Time `fn(*args)`. The device is that of the first tensor or module in args, else the GPU if one was used.

    repeats: timed calls. warmup: untimed calls before them, of which the first is kept apart.
    """
    positive_int("repeats", repeats)
    positive_int("warmup", warmup)
    with quiet() as note:
        first, *_ = [_seconds(fn, args) for _ in range(warmup)]
        runs = [_seconds(fn, args) for _ in range(repeats)]
    return _timing(fn, name, runs, first, device_of(*args).label, note)


def alternate(a: Callable, b: Callable, rounds: int = 15, names: tuple[str, str] = ("", "")) -> Ratio:
    """Time `a()` and `b()` in turn, so that a machine that slows down slows both, and take the ratio round by round.

    Which goes first changes from round to round. The device is the GPU if one was used, else the CPU.
    """
    positive_int("rounds", rounds)
    if not (callable(a) and callable(b)):
        raise BadInput("alternate takes two functions without arguments; wrap a call as lambda: f(x)")
    with quiet() as note:
        first = {call: _seconds(call, ()) for call in (a, b)}
        runs = {a: [], b: []}
        for turn in range(rounds):
            for call in (a, b) if turn % 2 == 0 else (b, a):
                runs[call].append(_seconds(call, ()))
    label = device_of().label
    low, middle, high = quartiles([x / y for x, y in zip(runs[a], runs[b], strict=True)])
    one, other = (_timing(call, name, runs[call], first[call], label, note)
                  for call, name in zip((a, b), names, strict=True))
    return Ratio(middle, low, high, rounds, one, other, label, note)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _seconds(fn: Callable, args: tuple) -> float:
    synchronize()
    begin = time.perf_counter()
    fn(*args)
    synchronize()
    return time.perf_counter() - begin


def _timing(fn: Callable, name: str, runs: list[float], first: float, device: str, note: str) -> Timing:
    low, middle, high = quartiles(runs)
    return Timing(name or getattr(fn, "__name__", "call"), middle, low, high, len(runs), first, device, note)
