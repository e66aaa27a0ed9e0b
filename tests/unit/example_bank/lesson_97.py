"""A bank whose check has a bug of its own."""

from gpucourse.exercises.kinds import Number


def failing():
    raise ImportError("No module named 'nowhere'")


EXERCISES = (Number("97.1", "A check that fails", expected=failing, unit="s", hints=("Wait.", "Report it.")),)
