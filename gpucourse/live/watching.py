"""`watch`: a training loop drawn while it runs, and a picture and a line of text when it has ended."""

import statistics
import threading
import time
from array import array

from gpucourse.catalog.units import GiB, bytes_text
from gpucourse.errors import BadInput, positive_int
from gpucourse.evidence import Figure, Readings, record
from gpucourse.live.chart_png import png
from gpucourse.live.chart_svg import svg
from gpucourse.live.picture import Picture
from gpucourse.live.screen import Screen
from gpucourse.live.series import MemoryPoint, StepPoint, memory_history, step_history
from gpucourse.settings import settings

SAMPLE = 0.1  # seconds between two looks at the memory
REDRAW = 0.2  # seconds between two drawings, at least
SHARE = 1 / 400  # of one core, at most, for drawing: a longer run is drawn less often


def watch(title: str, *, model=None, budget: float | None = None, sampler=None, live: bool | None = None) -> "Watch":
    """Watch a training loop: `with watch("training") as w:` around it, `w.step(samples)` after each step.

    Optimizers and the weights that they train are found by themselves. model: adds weights that none trains. budget: a
    number of bytes, drawn as a line. sampler: what is read instead of this process's device. live: draw while the loop
    runs; the default is to do so where a person watches.
    The chart is of memory by category and of samples a second. When the loop ends, also by an exception, it becomes a
    PNG and one line; the figures go to the run's record, and `w.readings()` gives them to `compare`. An exception
    passes on, without the local variables of the frames that it left, so that their tensors are freed.
    """
    if not isinstance(title, str) or not title.strip():
        raise BadInput(f"watch was given the title {title!r}; it needs a few words that say what runs")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget >= 1):
        raise BadInput(f"the budget is {budget!r}; it must be a number of bytes of at least 1, or be left out")
    if sampler is None:
        from gpucourse import measure

        sampler = measure.sampler(model)
    return Watch(title, sampler, budget, settings().interactive if live is None else live)


class Watch:
    """A loop being watched. `step` is called by the loop; a daemon thread reads the total and draws."""

    def __init__(self, title: str, sampler, budget: float | None, live: bool):
        self._title, self._sampler, self._budget, self._live = title, sampler, budget, live
        self._memory, self._steps = memory_history(), step_history()
        self._rates = array("d")  # of every step, for the median: 8 bytes each
        self._adding = threading.Lock()  # both threads add memory points
        self._stop = threading.Event()
        self._figures: tuple[Figure, ...] = ()

    def __enter__(self) -> "Watch":
        self._screen = Screen(self._live)  # first: what it loads is not the loop's memory
        self._sampler.__enter__()
        self._start = time.perf_counter()
        self._last_step = self._last_look = 0.0
        self._thread = threading.Thread(target=self._follow, name=f"watch {self._title}", daemon=True)
        self._thread.start()
        return self

    def step(self, samples: int) -> None:
        """One training step over `samples` samples has ended."""
        positive_int("samples of this step", samples)
        self._sampler.tick()
        now = self._now()
        point = StepPoint(self._last_step, now, samples)
        self._last_step = now
        self._steps.add(point)
        self._rates.append(point.rate)
        if now - self._last_look > SAMPLE / 4:
            self._look()

    def __exit__(self, kind, error, trace) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        peak = max(self._sampler.peak(), max(point.total for point in self._memory.points()))
        self._figures = self._measured(peak)
        how = f"{self._count()}, {_ending(error)}"
        self._sampler.__exit__(kind, error, trace)
        picture = self._picture(how)
        self._screen.freeze(lambda: png(picture), self._line(peak, error))
        if error is None:
            record(*self._figures)

    def readings(self) -> Readings:
        """The peak, and the median of the steps' samples a second: once the loop has ended."""
        if not self._figures:
            raise BadInput(f"{self._title!r} is still being watched; read it after the with block")
        return Readings("measured", self._figures, self._sampler.device)

    def _follow(self) -> None:
        drawn, pause = 0.0, REDRAW
        while not self._stop.wait(SAMPLE):
            self._look()
            if self._screen.live and self._now() - drawn >= pause:
                before = time.thread_time()
                self._screen.show(svg(self._picture(f"{self._count()}, running")))
                drawn, pause = self._now(), max(REDRAW, (time.thread_time() - before) / SHARE)

    def _look(self) -> None:
        """Take one memory point: integers only, so from any thread."""
        total, lines = self._sampler.total(), tuple(self._sampler.lines().items())
        with self._adding:
            self._last_look = self._now()
            self._memory.add(MemoryPoint(self._last_look, self._sampler.parts, total, lines))

    def _picture(self, state: str) -> Picture:
        phases = [(begin - self._start, phase) for begin, phase in self._sampler.phases.copy()]
        return Picture(self._title, state, self._now(), self._memory.points(), self._steps.points(), phases,
                       self._sampler.memory_is, self._sampler.device, self._budget)

    def _measured(self, peak: int) -> tuple[Figure, ...]:
        device, source = self._sampler.device, f"watch: {self._title}"
        figures = [Figure(self._sampler.peak_is, peak / GiB, "GiB", "measured", device, source)]
        if len(self._rates) >= 2:
            median = statistics.median(self._rates)
            figures.append(Figure("throughput", median, "samples/s", "measured", device, source))
        return tuple(figures)

    def _line(self, peak: int, error: BaseException | None) -> str:
        memory = f"peak {bytes_text(peak)} ({self._sampler.memory_is})"
        if len(self._rates) < 2:
            speed = f"{self._count()}: too few for a throughput"
        else:
            low, median, high = statistics.quantiles(self._rates, n=4, method="inclusive")
            digits = 0 if median >= 100 else 1 if median >= 10 else 2
            speed = f"{median:,.{digits}f} ± {(high - low) / 2:,.{digits}f} samples/s over {self._count()}"
        end = "" if error is None else f"{_ending(error)}; its tensors are released; "
        return f"{self._title}: {end}{memory}, {speed}, measured on {self._sampler.device}"

    def _count(self) -> str:
        return f"{len(self._rates):,} step{'' if len(self._rates) == 1 else 's'}"

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _ending(error: BaseException | None) -> str:
    if error is None:
        return "ended"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"stopped by {type(error).__name__}"
