"""`watch`: a training loop drawn while it runs, and a picture and a line of text when it has ended."""

import statistics
import threading
import time
from array import array

from gpucourse.catalog.units import GiB, bytes_text
from gpucourse.errors import BadInput, positive_int
from gpucourse.evidence import Figure, Readings, record
from gpucourse.live.picture import RUNNING, Picture, samples_text, steps_text
from gpucourse.live.screen import Screen
from gpucourse.live.series import MemoryPoint, StepPoint, memory_history, step_history
from gpucourse.live.to_kernel import ToKernel
from gpucourse.ranks import telling
from gpucourse.settings import settings

SAMPLE = 0.1  # seconds between two looks at the memory


def watch(title: str, *, model=None, budget: float | None = None, sampler=None, live: bool | None = None) -> "Watch":
    """Watch a training loop: `with watch("training") as w:` around it, `w.step(samples)` after each step.

    Optimizers and the weights that they train are found by themselves. model: adds weights that none trains. budget: a
    number of bytes, drawn as a line. sampler: what is read instead of this process's device. live: draw while the loop
    runs; the default is to do so where a person watches.
    The chart is of memory by category and of samples a second. When the loop ends, also by an exception, it becomes a
    PNG and one line; the figures go to the run's record, and `w.readings()` gives them to `compare`. An exception
    passes on, without the local variables of the frames that it left, so that their tensors are freed.

    In a function that `ranks.run` runs, the notebook shows one chart for all ranks that watch under this title, with a
    line a rank, and keeps its picture whatever becomes of them; outside a notebook each rank has its line of text.
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
        channel = telling.channel()
        # first: what it loads is not the loop's memory
        self._screen = ToKernel(channel, self._live) if channel else Screen(self._live)
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
        self._sampler.__exit__(kind, error, trace)
        self._screen.freeze(self._picture(_ending(error)), self._line(peak, error))
        if error is None:
            record(*self._figures)

    def readings(self) -> Readings:
        """The peak, and the median of the steps' samples a second: once the loop has ended."""
        if not self._figures:
            raise BadInput(f"{self._title!r} is still being watched; read it after the with block")
        return Readings(self._screen.kind, self._figures, self._sampler.device)

    def _follow(self) -> None:
        while not self._stop.wait(SAMPLE):
            self._look()
            self._screen.show(lambda: self._picture(RUNNING))

    def _look(self) -> None:
        """Take one memory point: integers only, so from any thread."""
        total, lines = self._sampler.total(), tuple(self._sampler.lines().items())
        with self._adding:
            self._last_look = self._now()
            self._memory.add(MemoryPoint(self._last_look, self._sampler.parts, total, lines))

    def _picture(self, ending: str) -> Picture:
        phases = [(begin - self._start, phase) for begin, phase in self._sampler.phases.copy()]
        return Picture(self._title, ending, self._now(), self._memory.points(), self._steps.points(), phases,
                       self._sampler.memory_is, self._sampler.device, self._budget, self._figures)

    def _measured(self, peak: int) -> tuple[Figure, ...]:
        device, source = self._sampler.device, f"watch: {self._title}{self._screen.who}"
        figures = [Figure(self._sampler.peak_is, peak / GiB, "GiB", "measured", device, source)]
        if len(self._rates) >= 2:
            median = statistics.median(self._rates)
            figures.append(Figure("throughput", median, "samples/s", self._screen.kind, device, source))
        return tuple(figures)

    def _line(self, peak: int, error: BaseException | None) -> str:
        memory = f"peak {bytes_text(peak)} ({self._sampler.memory_is})"
        count = steps_text(len(self._rates))
        if len(self._rates) < 2:
            speed = f"{count}: too few for a throughput"
        else:
            low, median, high = statistics.quantiles(self._rates, n=4, method="inclusive")
            speed = f"{samples_text(median, (high - low) / 2)} samples/s over {count}"
        end = "" if error is None else f"{_ending(error)}; its tensors are released; "
        link = "; the link is simulated" if self._screen.kind == "simulated" else ""
        return f"{self._title}{self._screen.who}: {end}{memory}, {speed}, measured on {self._sampler.device}{link}"

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _ending(error: BaseException | None) -> str:
    if error is None:
        return "ended"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"stopped by {type(error).__name__}"
