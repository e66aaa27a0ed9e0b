"""The kinds of exercise. A bank file lists them as data: bank/lesson_NN.py defines GUESSES and EXERCISES.

    GUESSES = (Guess("01.g1", "peak allocated", "GiB"),)
    EXERCISES = (
        Number("01.1", "Bytes a parameter", expected=lambda: 4 + 4 + 8, unit="bytes", within=0,
               misconceptions=(Misconception(4, "That counts the weights only. What else does AdamW keep?"),),
               hints=("What is alive during step()?", "Count weights, gradients and both moments.")),
    )

A value that the bank gives as a function is called when the learner checks: with nothing, or with what the lesson
measured where the check reads check("02.3", answer, given=measured). `example` is a stand-in for that measured
value: the tests try the wrong answers on it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucourse.exercises.results import Mark

# A number, or a function of nothing or of the check's `given` that returns one.
Value = float | Callable[..., float]


@dataclass(frozen=True)
class Misconception:
    """A wrong answer that people give, and one line on what was forgotten."""

    answer: Value
    says: str


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number in a unit. Right when it differs by at most `within` × the expected value, or by at most `or_within`."""

    expected: Value
    unit: str
    within: float = 0.01
    or_within: float = 0.0
    misconceptions: tuple[Misconception, ...] = ()
    wrong: tuple[Value, ...] = ()  # more answers that must be refused


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One of several options, by its key. `why` says for each wrong key what it mistakes."""

    options: Mapping[str, str]
    right: str | Callable[..., str]
    why: Mapping[str, str]


def one_of(why: Mapping[str, str], right: str | Callable[..., str]) -> Pick:
    """A pick among words that say what they mean: the keys of `why`."""
    return Pick(options={key: key for key in why}, right=right, why=why)


@dataclass(frozen=True)
class Exercise:
    """What every exercise has. `needs_gpus`: with fewer it is skipped, and `instead` says what is shown."""

    id: str
    title: str
    hints: tuple[str, ...] = field(kw_only=True)
    needs_gpus: int = field(default=0, kw_only=True)
    instead: str = field(default="", kw_only=True)
    example: Any = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Number(Quantity, Exercise):
    """The answer is a number."""


@dataclass(frozen=True)
class Choice(Pick, Exercise):
    """The answer is the key of an option."""


@dataclass(frozen=True)
class Parts(Exercise):
    """The answer is a dict with one value for each part. `wrong` lists more dicts that must be refused."""

    parts: Mapping[str, Quantity | Pick] = field(kw_only=True)
    wrong: tuple[Mapping[str, Any], ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Code(Exercise):
    """The answer is a function (or a class).

    run(function) yields a Mark for each thing that it checks, values and cost, and may raise Wrong to stop early.
    broken: {name: (a broken implementation, a fragment of the message that must refuse it)}.
    """

    run: Callable[[Callable], Iterable[Mark]] = field(kw_only=True)
    broken: Mapping[str, tuple[Callable, str]] = field(kw_only=True)


@dataclass(frozen=True)
class Guess:
    """A prediction to commit before a run. `quantity`: the row of the comparison that it predicts, or several."""

    id: str
    quantity: str | tuple[str, ...]
    unit: str

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.quantity,) if isinstance(self.quantity, str) else tuple(self.quantity)
