"""The form itself, a widget without a view.

A saved view is blank in a notebook that is opened without its kernel. So the cell shows text, which is what is saved:
one output that keeps a place for the form, and below it the last answer's result. The widget's front end (form.js)
moves the form into its place for as long as the kernel lives.
"""

import html
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from gpucourse.exercises import progress
from gpucourse.exercises.checking import examine, state_of
from gpucourse.exercises.kinds import Choice, Number, Parts, Pick, Quantity
from gpucourse.exercises.view import Lines, result_lines

HERE = Path(__file__).parent


class Form(anywidget.AnyWidget):
    """question: {id, title, fields: [{label, unit, options: [[key, text], …]}, …]}, a field for each part; a number
    has no options. It sends {answers: [text, …]}, "" for what was left blank, and is sent {reply: text}.
    """

    _esm = HERE / "form.js"
    _css = HERE / "form.css"
    question = traitlets.Dict().tag(sync=True)
    place = traitlets.Unicode().tag(sync=True)


@dataclass(frozen=True)
class Place:
    """What is saved in the form's stead: how to answer."""

    name: str
    text: Lines

    def __str__(self) -> str:
        return str(self.text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<div id="{html.escape(self.name)}">{self.text._repr_html_()}</div>'


def show_form(exercise: Choice | Number | Parts, given: Any) -> None:
    name = f"gpucourse-form-{secrets.token_hex(8)}"
    saved = f'{exercise.title}: run this cell to answer in a form, or use check("{exercise.id}", your answer).'
    display(Place(name, Lines(exercise.id, saved)))
    below = display(result_lines(state_of(exercise, ..., given, progress.hints_used(exercise.id))), display_id=True)
    parts = exercise.parts if isinstance(exercise, Parts) else {"": exercise}
    form = Form(place=name, question={"id": exercise.id, "title": exercise.title,
                                      "fields": [field(label, part) for label, part in parts.items()]})

    def answered(_widget: Form, message: dict, _buffers: list) -> None:
        typed = {label: value_typed(part, text)
                 for (label, part), text in zip(parts.items(), message["answers"], strict=True)}
        lines = result_lines(examine(exercise.id, typed.get("", typed), given))
        below.update(lines)
        form.send({"reply": str(lines)})

    form.on_msg(answered)


def field(label: str, part: Quantity | Pick) -> dict[str, Any]:
    if isinstance(part, Pick):
        options = [[key, text if text != key else ""] for key, text in part.options.items()]
        return {"label": label, "unit": "", "options": options}
    return {"label": label, "unit": "" if label.endswith(part.unit) else part.unit, "options": []}


def value_typed(part: Quantity | Pick, text: str) -> Any:
    """The key or the number that was given; blank when nothing was; else the text, of which the check says what to
    give.
    """
    if not text.strip():
        return ...
    if isinstance(part, Pick):
        return text
    try:
        return float(text)
    except ValueError:
        return text
