"""Each solved notebook runs again under nbval, and its deterministic cells give what was saved.

nbval runs in a pytest of its own, since a solved notebook's kernel needs an environment that no other test may have.
"""

import subprocess
import sys

import pytest

from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons
from gpucourse.settings import child_environment

LESSONS = lessons(here())


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])
def test_the_solved_notebook_gives_its_saved_outputs(lesson, tmp_path):
    environment = child_environment(GPUCOURSE_RUN=str(tmp_path), GPUCOURSE_LESSON=lesson.name, GPUCOURSE_SOLVED="1",
                                    GPUCOURSE_STRICT="1")
    notebook = here().solutions / f"{lesson.name}.ipynb"
    ran = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--nbval-lax",
                          "--nbval-current-env", "--nbval-cell-timeout=120", str(notebook)],
                         capture_output=True, text=True, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
