"""gpucourse progress: what has been answered, lesson by lesson, and how far off the guesses were."""

import click

from gpucourse.course.answered import Answers, by_lesson
from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons
from gpucourse.evidence import columns_text
from gpucourse.exercises import banks, progress


@click.command()
@click.option("--reset", is_flag=True, help="Begin anew; what was there is kept as a copy.")
def command(reset: bool) -> None:
    """Show your progress: exercises right, hints used, and the distance of your guesses."""
    if reset:
        file = progress.path()
        kept = progress.set_aside(file) if file.exists() else None
        click.echo(f"progress begins anew; kept as {kept}" if kept else "there was no progress to reset")
        return
    click.echo(columns_text(table(progress.events())))


def table(events: list[dict]) -> list[list[str]]:
    """One row a lesson of this checkout."""
    found = by_lesson(events)
    rows = [["lesson", "right", "of", "hints", "guesses", "typically off"]]
    for lesson in lessons(here()):
        mine = found.get(lesson.number, Answers())
        off = mine.typically_off
        rows.append([f"{lesson.number} · {lesson.title}", str(mine.count("right")), str(_exercises(lesson.number)),
                     str(mine.hints), str(len(mine.guesses)), "–" if off is None else f"{off:.0%}"])
    return rows


def _exercises(number: str) -> int:
    return len(banks.load(number).EXERCISES) if number in banks.lessons() else 0
