"""question(id): a form below the cell for all that is no code, where a person watches; else how to answer."""

from typing import Any

from gpucourse.errors import BadInput
from gpucourse.exercises import banks
from gpucourse.exercises.answers import quoted
from gpucourse.exercises.kinds import Choice, Code, Exercise, Number, Parts
from gpucourse.exercises.view import Lines, show
from gpucourse.settings import settings


def question(id: str, *, given: Any = None) -> None:
    """Show the form of an answer that is no code. The notebook works without it: check takes the same answer."""
    try:
        exercise = banks.exercise(id)
    except BadInput as error:
        show(Lines(str(id), f"no question: {error}"))
        return
    if settings().interactive and not isinstance(exercise, Code):
        from gpucourse.exercises.widget import show_form  # brings ipywidgets: only where a form is shown

        show_form(exercise, given)
    else:
        show(Lines(id, how_to_answer(exercise)))


def how_to_answer(exercise: Exercise) -> str:
    match exercise:
        case Choice():
            key, *others = exercise.options
            return f'answer with check("{exercise.id}", {quoted([key])}), or one of {quoted(others)}'
        case Number():
            return f'answer with check("{exercise.id}", number), the number in {exercise.unit}'
        case Parts():
            return f'answer with check("{exercise.id}", answer), a dict with {quoted(exercise.parts)}'
        case Code():
            return f'answer with check("{exercise.id}", function), the function itself'
    raise TypeError(f"{type(exercise).__name__} is no kind of exercise")
