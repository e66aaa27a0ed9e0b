"""Every lesson has the same parts in the same order, and its cells carry tags that mean something."""

import re

import pytest

from gpucourse.course import sources
from gpucourse.course.checkout import here
from gpucourse.course.lessons import HARDWARE, choose, find, lessons
from gpucourse.course.tasks import parameters
from gpucourse.errors import BadInput

HEADINGS = ["The question", "Predict", "Mechanism", "Measure", "Compare", "At full size", "Exercises",
            "When it breaks", "Explain it", "Take away"]
TAGS = {"parameters", "setup", "stub", "solution", "check", "nbval-check-output", "nbval-ignore-output", "nbval-skip"}
LESSONS = lessons(here())
each = pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])


@each
def test_the_headings_are_the_courses_own_in_order(lesson):
    text = "\n".join(cell.source for cell in sources.learner(lesson.source).cells if cell.cell_type == "markdown")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == HEADINGS


@each
def test_the_head_says_what_is_needed_and_states_objectives(lesson):
    head = sources.solved(lesson.source).cells[0].source
    assert lesson.minutes > 0 and set(lesson.hardware) <= set(HARDWARE) and lesson.sentence
    assert set(lesson.needs) <= {earlier.number for earlier in LESSONS if earlier.number < lesson.number}
    assert 3 <= len(re.findall(r"^[-*] ", head, flags=re.MULTILINE)) <= 5


@each
def test_a_lesson_that_is_named_exists(lesson):
    named = re.findall(r"(?:lessons?|Next:) (\d\d)\b", lesson.source.read_text(encoding="utf-8"))
    assert set(named) <= {other.number for other in LESSONS}


@each
def test_the_first_code_cell_imports_the_course_and_the_parameters_are_typed(lesson):
    notebook = sources.solved(lesson.source)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "from gpucourse import" in code[0].source
    (cell,) = [cell for cell in code if "parameters" in sources.tags(cell)]
    assert parameters(sources.text(notebook)) == {"profile": "auto", "world_size": 0, "seed": 0}
    assert [line for line in cell.source.splitlines() if "#" not in line] == [], "each parameter says what it is"


@each
def test_tags_are_known_and_exercises_come_as_stub_solution_check(lesson):
    cells = [cell for cell in sources.solved(lesson.source).cells if cell.cell_type == "code"]
    assert {tag for cell in cells for tag in sources.tags(cell)} <= TAGS
    parts = {}
    for cell in cells:
        if "exercise" in cell.metadata:
            kinds = {"stub", "solution", "check"} & set(sources.tags(cell))
            assert len(kinds) == 1, cell.source
            parts.setdefault(cell.metadata["exercise"], []).extend(kinds)
    assert 5 <= len(parts) <= 8
    for exercise, kinds in parts.items():
        assert kinds == ["stub", "solution", "check"], exercise
        assert exercise.startswith(f"{lesson.number}.")


@each
def test_code_stays_short_enough_to_read(lesson):
    long = [cell.source.splitlines()[0] for cell in sources.learner(lesson.source).cells
            if cell.cell_type == "code" and len(cell.source.splitlines()) > 25]
    assert long == []


def test_a_lesson_is_found_by_number_or_name(checkout, lesson):
    lesson("01_sums")
    lesson("02_products")
    every = lessons(checkout)
    assert {find(every, given).name for given in ("1", "01", "01_sums", "sums")} == {"01_sums"}
    assert {find(every, given).name for given in ("2", "02", "products")} == {"02_products"}
    assert choose(checkout, ()) == every
    assert choose(checkout, ("2", "1")) == every
    with pytest.raises(BadInput, match="lesson '02_product' is not known; did you mean 02_products[?]"):
        choose(checkout, ("02_product",))


def test_a_lesson_is_not_found_where_there_is_none(checkout):
    with pytest.raises(BadInput, match="lesson '1' is not known; solutions/ holds no lesson yet"):
        choose(checkout, ("1",))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("01 · Sums", "02 · Sums", "its first cell must begin with '# 01 · Title'"),
    ("**Minutes** 5", "Minutes 5", "its first cell has no line like"),
    ("cpu, gpu", "cpu, tpu", "hardware 'tpu' is not known; did you mean [cg]pu[?] allowed: cpu, gpu, gpus, nodes"),
])
def test_a_head_that_cannot_be_read_is_said(checkout, lesson, old, new, says):
    path = lesson("01_sums")
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BadInput, match=says):
        lessons(checkout)
