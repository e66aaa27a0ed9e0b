"""A batch run: how each kind of lesson ends, what is kept of it, and what a second run skips."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest

from gpucourse.course import machine, sources
from gpucourse.course.checkout import write
from gpucourse.course.lessons import choose, lessons
from gpucourse.course.run import run
from gpucourse.course.tasks import tasks, values
from gpucourse.errors import BadInput, Missing

# A bank of its own for lesson 01, so that the notebook's check is a real one.
BANK = '''
from gpucourse.exercises.kinds import Number
GUESSES = ()
EXERCISES = (Number("77.1", "A sum", expected=2, unit="", hints=("a", "b")),)
'''
CHECK = '''
# %%
from gpucourse.exercises import bank
bank.__path__.append({folder!r})
from gpucourse import check

# %% tags=["check"] exercise="77.1"
check("77.1", {answer})
'''


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    """Asking for the devices takes a process that imports torch: the tests of the command line do that."""
    monkeypatch.setattr(machine, "devices_from_outside", lambda: [{"label": "cpu (2 cores)"}])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def ready(checkout):
    """Write the learner's notebooks and give the tasks: ready(solved=…, given={…}, names=(…))."""
    def prepare(solved=False, given=None, names=()):
        for entry in lessons(checkout):
            write(checkout.notebooks / f"{entry.name}.ipynb", sources.text(sources.learner(entry.source)))
        return tasks(checkout, choose(checkout, names), solved, given or {})
    return prepare


def summary(out):
    return {line["lesson"]: line for line in json.loads((out / "summary.json").read_text())["lessons"]}


def test_one_bad_lesson_does_not_stop_the_others(checkout, lesson, ready, out, capsys):
    lesson("01_good", """
# %%
from gpucourse.evidence import Figure
record(Figure("peak", 2.0, "GiB", "computed"), Figure("peak", 2.5, "GiB", "measured", "cpu (2 cores)"))
""")
    lesson("02_broken", "\n# %%\nprint('before')\nraise RuntimeError('no such link')\n")
    lesson("03_killed", "\n# %%\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    lesson("04_hangs", "\n# %%\nimport time; time.sleep(1000)\n")
    assert run(checkout, ready(), out, jobs=2, deadline=30) == ["done", "failed", "died", "late"]
    found = summary(out)
    assert found["03_killed"]["seconds"] < 60
    assert found["02_broken"]["error"] == "RuntimeError: no such link"
    assert found["03_killed"]["error"] == "the kernel died in cell 5"
    assert found["04_hangs"]["cell"] == 5
    for name in found:
        kept = nbformat.read(out / f"{name}.ipynb", as_version=4)
        assert kept.cells[-1].cell_type == "code"
        assert (out / f"{name}.log").exists() == (found[name]["state"] != "done")
    assert "before\n" in json.dumps(nbformat.read(out / "02_broken.ipynb", as_version=4)).replace("\\n", "\n")
    evidence = [json.loads(line) for line in (out / "evidence.jsonl").read_text().splitlines()]
    assert [(line["lesson"], line["kind"], line["value"]) for line in evidence] == [
        ("01_good", "computed", 2.0), ("01_good", "measured", 2.5)]
    page = (out / "report.html").read_text()
    assert "no such link" in page and "2.5" in page and "http" not in page
    assert "02_broken: failed" in capsys.readouterr().out
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_run_leaves_no_process_behind(checkout, lesson, ready, out):
    lesson("01_hangs", """
# %%
import subprocess
subprocess.Popen(["sleep", "987.5"])
subprocess.run(["sleep", "987.5"])
""")
    assert run(checkout, ready(), out, deadline=8) == ["late"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "987.5"]]


@pytest.mark.parametrize(("strict", "answer", "state"), [
    ("", "3", "done"), ("1", "3", "failed"), ("1", "...", "done"), ("1", "2", "done")])
def test_a_wrong_answer_fails_only_when_strict(
        checkout, lesson, ready, out, tmp_path, monkeypatch, strict, answer, state):
    (tmp_path / "lesson_77.py").write_text(BANK)
    monkeypatch.setenv("GPUCOURSE_STRICT", strict)
    lesson("01_wrong", CHECK.format(folder=str(tmp_path), answer=answer))
    assert run(checkout, ready(), out) == [state]
    found = summary(out)["01_wrong"]
    assert found["exercise"] == ("77.1" if state == "failed" else "")
    assert ("77.1" in found["error"]) == (state == "failed")


def test_resume_runs_only_what_is_new_or_changed(checkout, lesson, ready, out, capsys):
    source = lesson("01_good")
    lesson("02_more")
    run(checkout, ready(), out)
    before = {name: (out / f"{name}.ipynb").stat().st_mtime_ns for name in ("01_good", "02_more")}
    source.write_text(source.read_text().replace("One sentence", "Another sentence"))
    assert run(checkout, ready(), out, resume=True) == ["done", "done"]
    assert (out / "02_more.ipynb").stat().st_mtime_ns == before["02_more"]
    assert (out / "01_good.ipynb").stat().st_mtime_ns > before["01_good"]
    run(checkout, ready(given={"seed": 3}, names=("02",)), out, resume=True)
    assert (out / "02_more.ipynb").stat().st_mtime_ns > before["02_more"]
    assert "01_good: done before, kept" not in capsys.readouterr().out


def test_parameters_reach_the_notebook_and_wrong_ones_are_refused(checkout, lesson, ready, out):
    lesson("01_good", "\n# %%\nprint(profile, world_size, seed)\n")
    run(checkout, ready(given=values((("profile", "full"), ("seed", "7")))), out)
    executed = nbformat.read(out / "01_good.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "full 0 7\n"
    with pytest.raises(BadInput, match="parameter 'sed' is not known; did you mean seed[?] allowed: profile, world_size"):
        ready(given={"sed": 1})
    with pytest.raises(BadInput, match="-p world_size is 'two'; it must be of type int, as 0 is"):
        ready(given={"world_size": "two"})


def test_solved_runs_the_solution_cells(checkout, lesson, ready, out):
    lesson("01_good", "\n# %%\nassert answer_1 == 2\n")
    assert run(checkout, ready(solved=True), out, solved=True) == ["done"]


def test_a_checkout_without_lessons_makes_an_empty_report(checkout, ready, out):
    assert run(checkout, ready(), out) == []
    assert (out / "report.html").is_file()


def test_a_notebook_that_is_not_built_is_said(checkout, lesson):
    lesson("01_good")
    with pytest.raises(Missing, match="notebooks/01_good.ipynb is not there; write it: gpucourse build"):
        tasks(checkout, choose(checkout, ()), False, {})


def test_an_output_folder_that_refuses_is_one_line(checkout, lesson, ready, tmp_path):
    lesson("01_good")
    (tmp_path / "file").write_text("")
    with pytest.raises(Missing, match="cannot write .*summary.json: a file is in the place of its folder;"):
        run(checkout, ready(), tmp_path / "file")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "summary.json", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Missing, match="No space left on device; free some space or name another folder"):
        write(tmp_path / "summary.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert (tmp_path / "summary.json").read_text() == "old"


def test_an_interrupted_run_ends_its_notebooks(checkout, lesson, out):
    lesson("01_hangs", "\n# %%\nimport subprocess\nsubprocess.run(['sleep', '986.5'])\n")
    write(checkout.notebooks / "01_hangs.ipynb", sources.text(sources.learner(lessons(checkout)[0].source)))
    script = ("from pathlib import Path\nfrom gpucourse import settings\n"
              f"settings.ROOT = Path({str(checkout.root)!r})\n"
              f"from gpucourse.course.cli import main\nraise SystemExit(main(['run', '--out', {str(out)!r}]))")
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    def sleeping():
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "986.5"]]
    until = time.monotonic() + 60
    while not sleeping() and time.monotonic() < until:
        time.sleep(0.2)
    assert sleeping()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "gpucourse: interrupted"
    assert not sleeping()
    assert summary(out)["01_hangs"]["state"] == "waiting"
