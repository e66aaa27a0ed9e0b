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
from gpucourse.exercises.kinds import Choice, Number
from gpucourse.exercises.view import Lines, result_lines

HERE = Path(__file__).parent


class Form(anywidget.AnyWidget):
    """question: {id, title, options: [[key, text], …], unit}. It sends {answer: text} and is sent {reply: text}."""

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


def show_form(exercise: Choice | Number, given: Any) -> None:
    name = f"gpucourse-form-{secrets.token_hex(8)}"
    saved = f'{exercise.title}: run this cell to answer in a form, or use check("{exercise.id}", your answer).'
    display(Place(name, Lines(exercise.id, saved)))
    below = display(result_lines(state_of(exercise, ..., given, progress.hints_used(exercise.id))), display_id=True)
    is_choice = isinstance(exercise, Choice)
    form = Form(place=name, question={
        "id": exercise.id, "title": exercise.title, "unit": "" if is_choice else exercise.unit,
        "options": list(exercise.options.items()) if is_choice else []})

    def answered(_widget: Form, message: dict, _buffers: list) -> None:
        answer = message["answer"]
        lines = result_lines(examine(exercise.id, answer if is_choice else typed_number(answer), given))
        below.update(lines)
        form.send({"reply": str(lines)})

    form.on_msg(answered)


def typed_number(text: str) -> Any:
    """The number that was typed; blank when nothing was; else the text itself, of which the check says what to give."""
    if not text.strip():
        return ...
    try:
        return float(text)
    except ValueError:
        return text
