"""Hints come one by one; a solution opens after an attempt and is read from the lesson's source."""

import pytest
from exercise_fixtures import examples  # noqa: F401

from gpucourse import check, hint, question, solution
from gpucourse.errors import Missing
from gpucourse.exercises import progress, solutions

pytestmark = pytest.mark.usefixtures("examples")

SOURCE = '''# %% [markdown]
# ### 98.1 Bytes a parameter

# %% tags=["stub"] exercise="98.1"
answer_1 = ...

# %% tags=["solution"] exercise="98.1"
answer_1 = 4 + 4 + 8  # weights, gradients, moments

# %% tags=["check"] exercise="98.1"
check("98.1", answer_1)

# %% tags=["solution"] exercise="98.3"
answer_3 = "b"
'''


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    (tmp_path / "98_example.py").write_text(SOURCE)
    monkeypatch.setattr(solutions, "SOLUTIONS", tmp_path)


def said(capsys):
    return capsys.readouterr().out


def test_each_call_gives_the_next_hint_and_after_the_last_says_so(capsys):
    for step in (1, 2, 3):
        hint("98.1")
        assert f"98.1  hint {step} of 3: " in said(capsys)
    hint("98.1")
    again = said(capsys)
    assert "no more hints: all 3 were given" in again and "1. What is alive" in again
    assert [event["step"] for event in progress.events()] == [1, 2, 3]


def test_the_use_of_hints_is_said_by_the_check(capsys):
    hint("98.1")
    check("98.1", 17)
    assert 'hint("98.1") has 3 steps; 1 used' in said(capsys)
    hint("98.1")
    hint("98.1")
    check("98.1", 17)
    assert 'hint("98.1") has 3 steps; all used; solution("98.1") shows the answer' in said(capsys)


def test_hints_of_another_exercise_do_not_count():
    hint("98.3")
    assert (progress.hints_used("98.1"), progress.hints_used("98.3")) == (0, 1)


@pytest.mark.usefixtures("lesson")
def test_the_solution_opens_after_one_attempt(capsys):
    solution("98.1")
    assert "opens after one attempt" in said(capsys)
    check("98.1", ...)
    solution("98.1")
    assert "opens after one attempt" in said(capsys)
    check("98.1", 17)
    solution("98.1")
    shown = said(capsys)
    assert "answer_1 = 4 + 4 + 8  # weights, gradients, moments" in shown
    assert "answer_3" not in shown and "answer_1 = ..." not in shown
    assert progress.events()[-1]["event"] == "solution"


@pytest.mark.usefixtures("lesson")
def test_in_a_notebook_the_solution_is_set_as_code():
    shown = solutions.Source("98.3", solutions.source_of("98.3"))
    assert shown._repr_markdown_() == '**98.3** a solution:\n\n```python\nanswer_3 = "b"\n```'


def test_a_missing_lesson_file_is_one_clear_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(solutions, "SOLUTIONS", tmp_path)
    check("98.1", 17)
    said(capsys)
    solution("98.1")
    line = said(capsys)
    assert "98_….py is not there: the course runs from a checkout" in line and line.count("\n") == 1


@pytest.mark.usefixtures("lesson")
def test_a_missing_solution_cell_is_said():
    with pytest.raises(Missing, match=r"no solution of 98\.4"):
        solutions.source_of("98.4")


@pytest.mark.parametrize("ask", [hint, solution, question])
def test_an_exercise_that_does_not_exist(ask, capsys):
    ask("98.99")
    line = said(capsys)
    assert "'98.99' is not known" in line and line.count("\n") == 1


@pytest.mark.parametrize("id, how", [
    ("98.1", 'check("98.1", number), the number in bytes a parameter'), ("98.3", 'check("98.3", "a"), or one of "b"'),
    ("98.4", 'a dict with "weights"'), ("98.5", "the function itself")])
def test_outside_a_notebook_a_question_is_one_line_that_says_how_to_answer(id, how, capsys):
    question(id)
    line = said(capsys)
    assert how in line and line.count("\n") == 1
