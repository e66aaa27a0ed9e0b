"""Finds the exercises: bank/lesson_NN.py holds those of lesson NN, whose ids are NN.1, NN.2, … and NN.g1, …"""

import difflib
import pkgutil
from importlib import import_module
from types import ModuleType

from gpucourse.errors import BadInput, unknown
from gpucourse.exercises import bank
from gpucourse.exercises.kinds import Exercise, Guess


def lessons() -> list[str]:
    """The lessons that have a bank, e.g. ["00", "01"]."""
    names = [module.name for module in pkgutil.iter_modules(bank.__path__)]
    return sorted(name.removeprefix("lesson_") for name in names if name.startswith("lesson_"))


def load(lesson: str) -> ModuleType:
    return import_module(f"gpucourse.exercises.bank.lesson_{lesson}")


def exercise(id: object) -> Exercise:
    """The exercise of this id. BadInput names the nearest id that there is."""
    return find("exercise", id, load(lesson_of(id)).EXERCISES)


def guessed(id: object) -> Guess:
    return find("guess", id, load(lesson_of(id)).GUESSES)


def lesson_of(id: object) -> str:
    if not isinstance(id, str):
        raise BadInput(f"the exercise's id is {id!r}; it is a text such as \"01.1\"")
    lesson = id.partition(".")[0]
    if lesson not in lessons():
        near = difflib.get_close_matches(id, [entry.id for known in lessons() for entry in load(known).EXERCISES], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"exercise {id!r} is not known; {hint}lessons with exercises: {', '.join(lessons()) or 'none'}")
    return lesson


def find(what: str, id: str, entries: tuple) -> Exercise | Guess:
    for entry in entries:
        if entry.id == id:
            return entry
    raise unknown(what, id, [entry.id for entry in entries])
