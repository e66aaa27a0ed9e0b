"""What a progress file says about each lesson: the last state of every exercise, hints used, guesses held against."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gpucourse.exercises import progress


@dataclass(frozen=True)
class Guessed:
    """One number that was predicted. off: guess ÷ what was found − 1."""

    id: str
    quantity: str
    value: float
    unit: str
    off: float

    @property
    def seen(self) -> float | None:
        return self.value / (1 + self.off) if self.off != -1 else None


@dataclass(frozen=True)
class Answers:
    """One lesson's answers. states: {exercise: state of its last check}."""

    states: dict[str, str] = field(default_factory=dict)
    hints: int = 0
    guesses: tuple[Guessed, ...] = ()

    def count(self, state: str) -> int:
        return sum(found == state for found in self.states.values())

    @property
    def typically_off(self) -> float | None:
        """The median distance of the guesses, as a fraction; None without any."""
        return median(abs(guess.off) for guess in self.guesses) if self.guesses else None


def answers(folder: Path) -> dict[str, Answers]:
    """{lesson number: answers} of a batch run's folder."""
    events, _ = progress.read(folder / "progress.jsonl")
    return by_lesson(events)


def by_lesson(events: list[dict]) -> dict[str, Answers]:
    """{lesson number: answers} of these events, oldest first."""
    numbers = sorted({event["exercise"].partition(".")[0] for event in events})
    return {number: _answers([e for e in events if e["exercise"].partition(".")[0] == number]) for number in numbers}


def _answers(events: list[dict]) -> Answers:
    states = {event["exercise"]: event["state"] for event in events if event["event"] == "check"}
    given = {event["exercise"]: event for event in events if event["event"] == "guess" and event["state"] == "given"}
    off = {event["exercise"]: event["off"] for event in events if event["event"] == "off"}
    guesses = tuple(Guessed(id, quantity, guess["values"][quantity], guess["unit"], distance)
                    for id, guess in given.items() for quantity, distance in off.get(id, {}).items()
                    if quantity in guess["values"])
    return Answers(states, sum(event["event"] == "hint" for event in events), guesses)
