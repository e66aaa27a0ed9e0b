"""What the chart of all ranks shows, before it is drawn: a line a rank, of its memory and of its throughput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpucourse.catalog.units import MiB
from gpucourse.live.picture import EACH, RATE, short, steps_text, unit_of
from gpucourse.live.rank_loop import RankLoop

SHADES = (RATE, "#d9822b", "#3d7ab3", EACH)  # apart in grey and for colour-blind readers
DASHED = 3  # whole, dashed, dotted: lines of ranks that do the same lie on each other
NAMED = 8  # ranks that have a name each; of more, the lowest and the highest do


@dataclass(frozen=True)
class Curve:
    """A rank's line. label: "" where it has none. dashes: 0 whole, 1 dashed, 2 dotted."""

    label: str
    times: Sequence[float]
    values: Sequence[float]
    colour: str
    dashes: int


@dataclass(frozen=True)
class RanksPicture:
    """loops: of the ranks that watch, by rank. ranks: how many there are."""

    title: str
    loops: Mapping[int, RankLoop]
    ranks: int

    @property
    def state(self) -> str:
        return f"{self.who}, {self.steps}, {self.ending}"

    @property
    def who(self) -> str:
        all_of_them = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        return all_of_them if len(self.loops) == self.ranks else f"{len(self.loops)} of {all_of_them}"

    @property
    def steps(self) -> str:
        few, *_, many = sorted([loop.steps for loop in self.loops.values()] * 2)
        return f"{few:,} to {steps_text(many)}" if few < many else steps_text(many)

    @property
    def ending(self) -> str:
        """`running`, or how all loops have ended; where that differs, of which ranks."""
        ended = {}
        for rank, loop in sorted(self.loops.items()):
            ended.setdefault(loop.ending, []).append(rank)
        if len(ended) == 1:
            return next(iter(ended))
        return ", ".join(f"{named(ranks)} {ending}" for ending, ranks in ended.items())

    @property
    def device(self) -> str:
        return ", ".join(dict.fromkeys(loop.device for loop in self.loops.values()))

    @property
    def memory_is(self) -> str:
        return ", ".join(dict.fromkeys(loop.memory_is for loop in self.loops.values()))

    @property
    def budget(self) -> float | None:
        return max((loop.budget for loop in self.loops.values() if loop.budget), default=None)

    @property
    def begin(self) -> float:
        return min(loop.begin for loop in self.loops.values())

    @property
    def seconds(self) -> float:
        return max(loop.begin + loop.seconds for loop in self.loops.values()) - self.begin

    @property
    def unit(self) -> tuple[int, str]:
        return unit_of(self.most)

    @cached_property
    def most(self) -> float:
        return max([*(loop.peak for loop in self.loops.values()), self.budget or 0, MiB])

    @cached_property
    def fastest(self) -> float:
        return max((rate for loop in self.loops.values() for rate in loop.rates), default=1.0)

    def memory_curves(self) -> list[Curve]:
        scale, _ = self.unit
        return self._curves({rank: (loop.times, [size / scale for size in loop.memory])
                             for rank, loop in self.loops.items()})

    def rate_curves(self) -> list[Curve]:
        return self._curves({rank: (loop.ends, loop.rates) for rank, loop in self.loops.items()})

    def _curves(self, drawn: Mapping[int, tuple[Sequence[float], Sequence[float]]]) -> list[Curve]:
        drawn = {rank: (times, values) for rank, (times, values) in sorted(drawn.items()) if values}
        by_last = sorted(drawn, key=lambda rank: drawn[rank][1][-1])
        ends = {} if len(drawn) <= NAMED else {by_last[0]: "min: ", by_last[-1]: "max: "}
        curves = []
        for rank, (times, values) in drawn.items():
            label = f"{ends.get(rank, '')}rank {rank}  {short(values[-1])}"
            colour, dashes = SHADES[rank % len(SHADES)], rank % DASHED
            if ends:
                colour, dashes, label = (RATE, 0, label) if rank in ends else (EACH, 0, "")
            shift = self.loops[rank].begin - self.begin
            curves.append(Curve(label, [time + shift for time in times], values, colour, dashes))
        return sorted(curves, key=lambda curve: bool(curve.label))  # what has a name lies on top


def named(ranks: Sequence[int]) -> str:
    if len(ranks) > 3:
        return f"{len(ranks)} ranks"
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
