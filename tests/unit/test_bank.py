"""The checkers, checked: for every exercise the stub is not attempted, the solution is right, and each wrong answer
that the bank lists is refused with a message of its own."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from lesson_answers import KINDS, answer, lessons, one_cell, tags

from gpucourse.exercises.checking import gpus, state_of
from gpucourse.exercises.judging import judge, value_of
from gpucourse.exercises.kinds import Choice, Code, Exercise, Number, Parts, Pick, Quantity
from gpucourse.exercises.results import Mark
from gpucourse.exercises.view import result_lines

LESSONS = lessons()
EXERCISES = [pytest.param(lesson, exercise, id=exercise.id) for lesson in LESSONS
             for exercise in lesson.bank.EXERCISES]
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
each_exercise = pytest.mark.parametrize("lesson, exercise", EXERCISES)


@each_exercise
def test_the_stub_is_not_attempted(lesson, exercise):
    stub, _ = answer(lesson, exercise, "stub")
    state = state_of(exercise, stub, None, used=0).state
    assert state == "not attempted" or (state == "skipped" and exercise.needs_gpus)


@each_exercise
def test_the_solution_is_right(lesson, exercise):
    skip_without_gpus(exercise)
    solution, given = answer(lesson, exercise, "solution")
    assert [mark for mark in judge(exercise, solution, given) if not mark.ok] == []


@each_exercise
def test_each_wrong_answer_is_refused_with_its_own_message(lesson, exercise):
    skip_without_gpus(exercise)
    tried = 0
    for name, wrong, message in wrong_answers(exercise):
        tried += 1
        refused = [mark for mark in judge(exercise, wrong, exercise.example) if not mark.ok]
        assert len(refused) >= 1, f"{exercise.id} accepts the wrong answer {name}"
        assert message in words(refused), f"{exercise.id} refuses {name} without saying {message!r}"
    if isinstance(exercise, Code):
        for name, (broken, fragment) in exercise.broken.items():
            tried += 1
            result = state_of(exercise, broken, None, used=0)
            said = str(result_lines(result))
            assert result.state in ("wrong", "error"), f"{exercise.id} accepts the broken implementation {name}: {said}"
            assert "check itself" not in said, said
            assert fragment and fragment in " ".join(said.split()), f"{name} is refused without {fragment!r}: {said}"
    assert tried, f"{exercise.id} ships no wrong answer"


@each_exercise
def test_there_are_hints_in_steps(lesson, exercise):
    assert len(exercise.hints) >= 2 and all(exercise.hints)
    assert len(set(exercise.hints)) == len(exercise.hints)


@each_exercise
def test_the_source_has_stub_solution_and_check_in_this_order(lesson, exercise):
    positions = [lesson.cells.index(one_cell(lesson, exercise, kind)) for kind in KINDS]
    assert positions == list(range(positions[0], positions[0] + 3))


@each_lesson
def test_a_lesson_has_five_to_eight_exercises_numbered_in_order(lesson):
    ids = [exercise.id for exercise in lesson.bank.EXERCISES]
    assert 5 <= len(ids) <= 8
    assert ids == [f"{lesson.number}.{place}" for place in range(1, len(ids) + 1)]


@each_lesson
def test_guesses_are_numbered_and_name_what_they_predict(lesson):
    ids = [guess.id for guess in lesson.bank.GUESSES]
    assert ids == [f"{lesson.number}.g{place}" for place in range(1, len(ids) + 1)]
    assert all(guess.unit and all(guess.quantities) for guess in lesson.bank.GUESSES)


@each_lesson
def test_the_source_has_no_exercise_that_the_bank_lacks(lesson):
    marked = {cell.metadata.get("exercise") for cell in lesson.cells if tags(cell) & set(KINDS)}
    assert marked == {exercise.id for exercise in lesson.bank.EXERCISES}


@each_lesson
def test_every_guess_of_the_source_is_in_the_bank_and_the_other_way_round(lesson):
    source = "\n".join(cell.source for cell in lesson.cells)
    called = set(re.findall(r"""\bguess\(\s*["']([^"']+)["']""", source))
    assert called == {guess.id for guess in lesson.bank.GUESSES}


def wrong_answers(exercise: Exercise) -> Iterator[tuple[str, Any, str]]:
    """(name, answer, what the message must contain)."""
    match exercise:
        case Parts():
            right = {name: right_value(part, exercise.example) for name, part in exercise.parts.items()}
            for name, part in exercise.parts.items():
                for wrong, message in wrong_values(part, exercise.example):
                    yield f"{name}: {wrong}", {**right, name: wrong}, message
            for wrong in exercise.wrong:
                yield str(wrong), wrong, ""
        case Number() | Choice():
            for wrong, message in wrong_values(exercise, exercise.example):
                yield str(wrong), wrong, message


def wrong_values(part: Quantity | Pick, example: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(part, Pick):
        for key in part.options:
            if key != right_value(part, example):
                assert part.why.get(key), f"option {key!r} has no line on what it mistakes"
                yield key, part.why[key]
        return
    for misconception in part.misconceptions:
        assert misconception.says
        yield value_of(misconception.answer, example), misconception.says
    for wrong in part.wrong:
        yield value_of(wrong, example), ""


def right_value(part: Quantity | Pick, example: Any) -> Any:
    return value_of(part.right if isinstance(part, Pick) else part.expected, example)


def words(marks: list[Mark]) -> str:
    return "\n".join(f"{mark.what} {mark.seen} {mark.note}" for mark in marks)


def skip_without_gpus(exercise: Exercise) -> None:
    if isinstance(exercise, Code) and exercise.needs_gpus > gpus():
        pytest.skip(f"needs {exercise.needs_gpus} GPUs")
