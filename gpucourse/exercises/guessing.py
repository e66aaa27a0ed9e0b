"""guess(id, value, unit): the learner commits to a number before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucourse.errors import BadInput
from gpucourse.evidence import GUESS, Comparison, Figure, Readings, number
from gpucourse.exercises import banks, progress
from gpucourse.exercises.answers import named_values, number_of
from gpucourse.exercises.kinds import Guess
from gpucourse.exercises.results import CheckFailed, Unusable
from gpucourse.exercises.view import Lines, show
from gpucourse.settings import settings

# Units that a guess may be given in, each in the smallest one of its group.
SCALES = (
    {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4},
    {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1},
)


@dataclass(frozen=True)
class Guessed:
    """A guess in the exercise's unit: a column of a comparison. A blank one has no values."""

    id: str
    values: Mapping[str, float]
    unit: str

    def readings(self) -> Readings:
        return Readings(GUESS, tuple(Figure(name, value, self.unit, GUESS) for name, value in self.values.items()))

    def seen(self, comparison: Comparison) -> None:
        """Called by compare(): keep how far off the guess was, as guess ÷ the last value found − 1."""
        off = {}
        for name, unit, values in comparison.rows():
            found = [value for column, value in zip(comparison.columns, values, strict=True)
                     if value is not None and column.kind != GUESS]
            if name in self.values and unit == self.unit and found and found[-1]:
                off[name] = self.values[name] / found[-1] - 1
        if off:
            progress.add("off", self.id, off=off)


def guess(id: str, value: Any, unit: str) -> Guessed:
    """Commit to a number, or to a dict of several, before the run that shows it. `...` leaves it blank.

    The unit is the exercise's, or one that converts to it: bytes, KiB, MiB, GiB, TiB; µs, ms, s.
    A guess that cannot be read is said in one line and counts as blank; under GPUCOURSE_STRICT=1 it raises CheckFailed.
    """
    try:
        entry = banks.guessed(id)
        values = read(entry, value, unit)
    except (BadInput, Unusable) as error:
        show(Lines(str(id), f"✗ error: {error}"))
        if settings().strict:
            raise CheckFailed(f"guess {id}: {error}") from None
        return Guessed(str(id), {}, str(unit))
    state = "given" if values else "blank"
    progress.add("guess", id, state=state, values=values, unit=entry.unit)
    said = ", ".join(f"{name} {number(guessed)} {entry.unit}" for name, guessed in values.items())
    show(Lines(id, f"your guess: {said}" if values else "no guess yet: put a number in place of ... and run this cell"))
    return Guessed(id, values, entry.unit)


def read(entry: Guess, value: Any, unit: str) -> dict[str, float]:
    """The guess by quantity, in the exercise's unit, without those left blank. Raises Unusable."""
    scale = scale_between(unit, entry.unit)
    if len(entry.quantities) == 1 and not isinstance(value, Mapping):
        value = {entry.quantities[0]: value}
    if value is ...:
        return {}
    given = named_values(value, entry.quantities, "the guess")
    values = {name: number_of(item, unit, f"the guess of {name}") * scale
              for name, item in given.items() if item is not ...}
    negative = [name for name, item in values.items() if item < 0]
    if negative:
        raise Unusable(f"the guess of {negative[0]} is {number(given[negative[0]])}: give a number of at least 0")
    return values


def scale_between(unit: Any, wanted: str) -> float:
    """The factor from `unit` to `wanted`; "s a step" converts to "ms a step". Raises Unusable."""
    if unit == wanted:
        return 1.0
    name, _, rest = str(unit).partition(" ")
    wanted_name, _, wanted_rest = wanted.partition(" ")
    for scales in SCALES:
        if name in scales and wanted_name in scales and rest == wanted_rest:
            return scales[name] / scales[wanted_name]
    allowed = [wanted, *(f"{other} {wanted_rest}".strip() for scales in SCALES if wanted_name in scales
                         for other in scales if other != wanted_name)]
    raise Unusable(f"the unit is {unit!r}: give the guess in {', '.join(allowed)}")
