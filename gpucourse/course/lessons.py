"""The lessons of a checkout, as the first cell of each source describes them."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpucourse.course.checkout import Checkout
from gpucourse.errors import BadInput, unknown

HARDWARE = ("cpu", "gpu", "gpus", "nodes")
_NAME = re.compile(r"\d\d_[a-z0-9_]+")
_TITLE = re.compile(r"# (\d\d) · (.+)")
_FACTS = re.compile(r"\*\*Minutes\*\* (\d+) · \*\*Hardware\*\* ([a-z, ]+) · \*\*Needs\*\* (.+)")


@dataclass(frozen=True)
class Lesson:
    """One lesson. hardware: what it can run on, least first. needs: numbers of the lessons that come before it."""

    name: str
    title: str
    sentence: str
    minutes: int
    hardware: tuple[str, ...]
    needs: tuple[str, ...]
    source: Path

    @property
    def number(self) -> str:
        return self.name[:2]


def lessons(checkout: Checkout) -> tuple[Lesson, ...]:
    """All lessons in order; none where there is no source yet."""
    return tuple(describe(path) for path in sorted(checkout.solutions.glob("*.py")) if _NAME.fullmatch(path.stem))


def describe(source: Path) -> Lesson:
    """Read a lesson's first cell: title, one sentence, then minutes, hardware and needs."""
    title, facts, sentence = None, None, ""
    for line in head(source.read_text(encoding="utf-8")):
        if title is None:
            title = _TITLE.fullmatch(line)
        elif facts := _FACTS.fullmatch(line):
            break
        elif line:
            sentence = f"{sentence} {line}".strip()
    if title is None or title[1] != source.stem[:2]:
        raise BadInput(f"{source.name}: its first cell must begin with '# {source.stem[:2]} · Title'")
    if facts is None:
        raise BadInput(f"{source.name}: its first cell has no line like '**Minutes** 60 · **Hardware** cpu, gpu · "
                       "**Needs** 00' ('–' where nothing is needed)")
    hardware = tuple(word.strip() for word in facts[2].split(","))
    for word in hardware:
        if word not in HARDWARE:
            raise unknown(f"{source.name}: hardware", word, HARDWARE)
    return Lesson(source.stem, title[2], sentence, int(facts[1]), hardware,
                  tuple(re.findall(r"\d\d", facts[3])), source)


def head(text: str) -> list[str]:
    """The lines of the first markdown cell of a py:percent source, without their comment marks."""
    _, _, rest = text.partition("# %% [markdown]\n")
    cell, _, _ = rest.partition("\n# %%")
    return [line.removeprefix("#").strip() for line in cell.splitlines()]


def choose(checkout: Checkout, given: tuple[str, ...]) -> tuple[Lesson, ...]:
    """The lessons named by number ("1", "01") or name ("01_memory_anatomy"), in the course's order; all for none."""
    every = lessons(checkout)
    wanted = {find(every, name) for name in given} or set(every)
    return tuple(lesson for lesson in every if lesson in wanted)


def find(every: tuple[Lesson, ...], given: str) -> Lesson:
    """The lesson of that number or name, or BadInput with the nearest one."""
    number = given.zfill(2)
    for lesson in every:
        if given in (lesson.name, lesson.name[3:]) or number == lesson.number:
            return lesson
    if not every:
        raise BadInput(f"lesson {given!r} is not known; solutions/ holds no lesson yet")
    raise unknown("lesson", given, [lesson.name for lesson in every])
