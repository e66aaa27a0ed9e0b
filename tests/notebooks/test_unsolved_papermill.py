"""Each learner's notebook runs as it is given out, with nothing answered, and ends well within its deadline."""

import pytest

from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons
from gpucourse.course.record import read
from gpucourse.course.run import run
from gpucourse.course.tasks import tasks

LESSONS = lessons(here())


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])
def test_the_unsolved_notebook_runs(lesson, tmp_path):
    states = run(here(), tasks(here(), (lesson,), False, {"profile": "smoke"}), tmp_path)
    assert states == ["done"], read(tmp_path)["lessons"][0]["error"]
