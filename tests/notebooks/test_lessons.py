"""Each lesson runs: as it is given out, unanswered, under papermill; and solved, under nbval.

One file, so that one worker runs them all: lessons that time something at the same moment wait for each other. The
deadlines are for hangs alone; how long a lesson takes is no test.
"""

import subprocess
import sys

import pytest

from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons
from gpucourse.course.record import read
from gpucourse.course.run import run
from gpucourse.course.tasks import tasks
from gpucourse.settings import child_environment

HANGS = 900  # seconds
LESSONS = lessons(here())
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])


@each_lesson
def test_the_unsolved_notebook_runs(lesson, tmp_path):
    states = run(here(), tasks(here(), (lesson,), False, {"profile": "smoke"}), tmp_path, deadline=HANGS)
    assert states == ["done"], read(tmp_path)["lessons"][0]["error"]


@each_lesson
def test_the_solved_notebook_gives_its_saved_outputs(lesson, tmp_path):
    """nbval runs in a pytest of its own: a solved notebook's kernel needs an environment that no other test may have."""
    environment = child_environment(GPUCOURSE_RUN=str(tmp_path), GPUCOURSE_LESSON=lesson.name, GPUCOURSE_SOLVED="1",
                                    GPUCOURSE_STRICT="1")
    notebook = here().solutions / f"{lesson.name}.ipynb"
    ran = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--nbval-lax",
                          "--nbval-current-env", f"--nbval-cell-timeout={HANGS}", str(notebook)],
                         capture_output=True, text=True, env=environment, timeout=HANGS)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
