"""hint(id): the exercise's next hint. Which ones were seen is kept with the progress."""

from gpucourse.errors import BadInput
from gpucourse.exercises import banks, progress
from gpucourse.exercises.view import Lines, show


def hint(id: str) -> None:
    """Show the next hint; after the last one, all of them again."""
    try:
        steps = banks.exercise(id).hints
    except BadInput as error:
        show(Lines(str(id), f"no hint: {error}"))
        return
    used = progress.hints_used(id)
    if used < len(steps):
        progress.add("hint", id, step=used + 1)
        show(Lines(id, f"hint {used + 1} of {len(steps)}: {steps[used]}"))
        return
    said = f'no more hints: all {len(steps)} were given. After one attempt solution("{id}") shows the answer.'
    show(Lines(id, said, tuple((0, f"{step}. {text}") for step, text in enumerate(steps, start=1))))
