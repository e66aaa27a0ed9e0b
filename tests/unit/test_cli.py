"""The command line: bad usage in one line, what importing costs, and what each command prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucourse.course.cli import COMMANDS, main
from gpucourse.settings import ROOT, child_environment

WRITES = """
import sys
def watch(event, arguments):
    if event == "open" and arguments[1] and set(arguments[1]) & set("wax+"):
        raise SystemExit(f"wrote {arguments[0]}")
sys.addaudithook(watch)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env=child_environment(PYTHONDONTWRITEBYTECODE="1", **environment))


def test_importing_the_package_loads_no_torch_and_writes_nothing(tmp_path):
    ran = python(WRITES + "import gpucourse\nassert 'torch' not in sys.modules, 'torch'", HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_the_watch_on_writing_sees_a_write(tmp_path):
    ran = python(WRITES + f"open({str(tmp_path / 'x')!r}, 'w')")
    assert ran.returncode == 1 and "wrote" in ran.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["progress", "--help"], ["run", "--help"], ["build", "--help"],
                                       ["doctor", "--help"]], ids=" ".join)
def test_help_loads_neither_torch_nor_papermill(arguments):
    code = ("import sys\nfrom gpucourse.course.cli import main\n"
            f"code = main({arguments})\n"
            "loaded = {'torch', 'papermill', 'jupytext', 'IPython'} & set(sys.modules)\n"
            "sys.exit(str(loaded) if loaded else code)")
    ran = python(code)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: gpucourse" in ran.stdout


@pytest.mark.parametrize(("arguments", "says"), [
    (["bild"], "command 'bild' is not known; did you mean build? allowed: " + ", ".join(COMMANDS)),
    (["run", "--profile", "huge"], "Invalid value for '--profile': 'huge' is not one of 'auto', 'smoke', 'full'."),
    (["run", "--jobs", "0"], "--jobs is 0; it must be a whole number of at least 1"),
    (["run", "--jobs", "two"], "Invalid value for '--jobs': 'two' is not a valid integer."),
    (["run", "99"], "lesson '99' is not known;"),
    (["run", "-p", "seed"], "Option '-p' requires 2 arguments."),
    (["build", "--chek"], "No such option '--chek'."),
    (["report"], "Missing argument 'DIR...'."),
    (["report", "nowhere"], "nowhere is not the folder of a run: it holds no readable summary.json"),
    (["run", "--solved", "--out", "/dev/null/run"], "cannot write /dev/null/run/summary.json: "),
])
def test_bad_usage_is_one_line_and_exit_2(arguments, says, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gpucourse: ") and printed.err.count("\n") == 1
    assert says in printed.err


def test_a_package_without_its_checkout_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gpucourse.settings.ROOT", tmp_path)
    assert main(["run"]) == 2
    assert capsys.readouterr().err == ("gpucourse: data/ is not beside the package; the course runs from a checkout: "
                                       "clone it and install with pip install -e .\n")


def test_doctor_prints_one_json_object_and_names_neither_host_nor_folder(capsys):
    assert main(["doctor", "--json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert list(found) == ["versions", "devices", "backends", "ceilings", "lessons", "missing"]
    assert set(found["versions"]) >= {"python", "torch", "jupyterlab"}
    assert found["devices"][-1]["kind"] == "cpu" and found["devices"][-1]["capacity_bytes"] > 0
    assert found["backends"]["gloo"] is True
    assert all(ceiling["kind"] == "measured" and ceiling["value"] > 0 for ceiling in found["ceilings"])
    assert all(gap["cure"] for gap in found["missing"])
    assert str(ROOT) not in printed and os.uname().nodename not in printed


def test_lab_serves_the_notebooks_to_this_machine_alone(monkeypatch):
    started = []
    monkeypatch.setattr("gpucourse.course.lab.subprocess.call", lambda line: started.extend(line) or 0)
    assert main(["lab", "--no-browser"]) == 0
    assert started[1:] == ["-m", "jupyterlab", "--ip=127.0.0.1", f"--ServerApp.root_dir={ROOT / 'notebooks'}",
                           "--no-browser"]


def test_progress_counts_and_reset_keeps_a_copy(tmp_path, monkeypatch, capsys):
    from gpucourse.exercises import progress

    monkeypatch.setenv("GPUCOURSE_STATE", str(tmp_path))
    progress.add("check", "01.1", state="right", parts=[1, 1], hints=0)
    assert main(["progress"]) == 0
    assert capsys.readouterr().out.startswith("lesson")
    assert main(["progress", "--reset"]) == 0
    assert [path.name for path in tmp_path.iterdir()] != ["progress.jsonl"]
    assert progress.events() == []
    assert len(list(tmp_path.glob("progress.kept-*"))) == 1


def test_answers_keep_the_last_state_hints_and_the_distance_of_guesses():
    from gpucourse.course.answered import by_lesson

    events = [{"exercise": "01.1", "event": "check", "state": "wrong"},
              {"exercise": "01.1", "event": "hint", "step": 1},
              {"exercise": "01.1", "event": "check", "state": "right"},
              {"exercise": "01.g1", "event": "guess", "state": "given", "values": {"peak": 1.5}, "unit": "GiB"},
              {"exercise": "01.g1", "event": "off", "off": {"peak": -0.25}},
              {"exercise": "02.1", "event": "check", "state": "wrong"}]
    found = by_lesson(events)
    assert found["01"].states == {"01.1": "right"} and found["01"].hints == 1
    assert [(guess.quantity, guess.value, guess.seen) for guess in found["01"].guesses] == [("peak", 1.5, 2.0)]
    assert found["01"].typically_off == 0.25
    assert found["02"].count("wrong") == 1 and found["02"].typically_off is None


def test_lint_and_floors_hold():
    scripts = Path(sys.executable).parent
    for command in ([scripts / "ruff", "check"], [scripts / "lint-imports"]):
        ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == 0, ran.stdout + ran.stderr
