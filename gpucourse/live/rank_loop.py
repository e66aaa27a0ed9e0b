"""A loop that a rank watches, as it travels to the kernel, and the rank's end of the chart that shows it there."""

from array import array
from dataclasses import dataclass

from gpucourse.catalog.units import GiB
from gpucourse.evidence import Figure
from gpucourse.live.picture import Picture, running_median


@dataclass(frozen=True)
class RankLoop:
    """The loop so far. Arrays, since objects would take longer to read than to draw.

    begin: seconds on the machine's clock; `times`, of `memory` (bytes), and `ends`, of `rates` (samples/s, running
    median), count from it. ending: `running`, or how it has ended; then there are its figures and its line of text.
    """

    title: str
    begin: float
    seconds: float
    times: array
    memory: array
    ends: array
    rates: array
    steps: int
    ending: str
    memory_is: str
    device: str
    budget: float | None
    live: bool
    figures: tuple[Figure, ...] = ()
    line: str = ""

    @property
    def peak(self) -> float:
        """Bytes."""
        return self.figures[0].value * GiB if self.figures else max(self.memory, default=0)


def rank_loop(picture: Picture, begin: float, live: bool, line: str = "") -> RankLoop:
    return RankLoop(
        title=picture.title, begin=begin, seconds=picture.seconds,
        times=array("d", [point.time for point in picture.memory]),
        memory=array("d", [point.total for point in picture.memory]),
        ends=array("d", [point.end for point in picture.steps]),
        rates=array("d", running_median([point.rate for point in picture.steps])),
        steps=sum(point.steps for point in picture.steps), ending=picture.ending, memory_is=picture.memory_is,
        device=picture.device, budget=picture.budget, live=live, figures=picture.figures, line=line)
