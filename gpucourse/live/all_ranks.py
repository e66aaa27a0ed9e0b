"""The kernel's end of loops that ranks watch: one chart for all ranks, while they run and when they have ended."""

from dataclasses import replace

from gpucourse.catalog.units import bytes_text
from gpucourse.live.picture import RUNNING, samples_text, steps_text
from gpucourse.live.rank_loop import RankLoop
from gpucourse.live.ranks_picture import RanksPicture
from gpucourse.live.screen import Screen, in_notebook


class AllRanks:
    """A listener of a launch: hears what its ranks watch. Loops of one title, one a rank, share a chart."""

    def __init__(self, ranks: int):
        self._ranks = ranks
        self._charts: list[Chart] = []

    def hear(self, rank: int, loop: RankLoop) -> None:
        chart = next((chart for chart in self._charts if chart.takes(rank, loop)), None)
        if chart is None:
            chart = Chart(loop, self._ranks)
            self._charts.append(chart)
        chart.hear(rank, loop)

    def close(self) -> None:
        for chart in self._charts:
            chart.freeze()


class Chart:
    def __init__(self, first: RankLoop, ranks: int):
        self._title, self._ranks = first.title, ranks
        self._loops: dict[int, RankLoop] = {}
        self._screen = Screen(first.live)

    def takes(self, rank: int, loop: RankLoop) -> bool:
        """Not where this rank has watched an earlier loop of that title."""
        return loop.title == self._title and self._loops.get(rank, loop).begin == loop.begin

    def hear(self, rank: int, loop: RankLoop) -> None:
        self._loops[rank] = loop
        self._screen.show(lambda: RanksPicture(self._title, dict(self._loops), self._ranks))

    def freeze(self) -> None:
        loops = {rank: replace(loop, ending="cut off") if loop.ending == RUNNING else loop
                 for rank, loop in sorted(self._loops.items())}
        picture = RanksPicture(self._title, loops, self._ranks)
        self._screen.freeze(picture, together(picture) if in_notebook() else "\n".join(each(picture)))


def each(picture: RanksPicture) -> list[str]:
    """A line of each rank: its own, or what is known of one that did not come to its end."""
    return [loop.line or f"{picture.title}, rank {rank}: cut off after {steps_text(loop.steps)}; highest seen "
            f"{bytes_text(loop.peak)} ({loop.memory_is}), measured on {loop.device}"
            for rank, loop in picture.loops.items()]


def together(picture: RanksPicture) -> str:
    """One line for all ranks."""
    highest = max(picture.loops, key=lambda rank: picture.loops[rank].peak)
    memory = f"highest peak {bytes_text(picture.loops[highest].peak)} on rank {highest} ({picture.memory_is})"
    rates = [figure for loop in picture.loops.values() for figure in loop.figures if figure.name == "throughput"]
    speed = f"{samples_text(sum(figure.value for figure in rates))} samples/s together over "
    simulated = "; the link is simulated" if any(figure.kind == "simulated" for figure in rates) else ""
    ending = "" if picture.ending == "ended" else f"{picture.ending}; "
    return (f"{picture.title}: {ending}{picture.who}, {memory}, {speed if len(rates) == len(picture.loops) else ''}"
            f"{picture.steps}, measured on {picture.device}{simulated}")
