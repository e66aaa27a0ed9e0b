"""The progress file: whole, torn, damaged, newer, unwritable, and written by two notebooks at once."""

import json
import os
import subprocess
import sys

import pytest
from exercise_fixtures import examples  # noqa: F401

from gpucourse import check, hint
from gpucourse.exercises import progress


@pytest.fixture
def state(examples):  # noqa: F811
    yield examples
    progress.unsaved.cache_clear()


def entry(id="98.1", event="check", v=1, **facts):
    return json.dumps({"v": v, "time": "2026-01-01T00:00:00+00:00", "lesson": "98", "exercise": id, "event": event,
                       **facts}) + "\n"


def write(state, text):
    state.mkdir(exist_ok=True)
    raw = text if isinstance(text, bytes) else text.encode()
    (state / "progress.jsonl").write_bytes(raw)


def test_an_event_says_what_happened(state):
    hint("98.4")
    check("98.4", {"weights": 2, "gradients": 0.5, "peak at": "step"})
    first, second = progress.events()
    assert (first["event"], first["step"]) == ("hint", 1)
    assert {key: second[key] for key in ("v", "lesson", "exercise", "event", "state", "parts", "hints")} == {
        "v": 1, "lesson": "98", "exercise": "98.4", "event": "check", "state": "wrong", "parts": [2, 3], "hints": 1}
    assert second["time"].endswith("+00:00")


def test_a_blank_check_after_an_answer_is_no_event(state):
    for answer in (..., 16, ..., ...):
        check("98.1", answer)
    assert [event["state"] for event in progress.events()] == ["not attempted", "right"]


def test_the_state_folder_is_made_when_it_is_missing(state):
    assert not state.exists()
    check("98.1", 16)
    assert (state / "progress.jsonl").exists()


def test_a_batch_run_keeps_its_own(state, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUCOURSE_RUN", str(tmp_path / "run"))
    check("98.1", 16)
    assert (tmp_path / "run" / "progress.jsonl").exists() and not state.exists()


def test_without_a_setting_it_is_in_the_users_state_folder(state, monkeypatch, tmp_path):
    monkeypatch.delenv("GPUCOURSE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress.path().is_relative_to(tmp_path) and progress.path().name == "progress.jsonl"


def test_a_torn_last_line_is_skipped_and_not_continued(state, capsys):
    whole = entry(state="right")
    write(state, whole + whole[:40])
    check("98.1", 4)
    assert [event["state"] for event in progress.events()] == ["right", "wrong"]
    assert "kept" not in capsys.readouterr().out
    assert [path.name for path in state.iterdir()] == ["progress.jsonl"]


@pytest.mark.parametrize("damage", [b"\x00\x00\x00\x00\n", b"<html>\n", b"[1, 2]\n", b"{}\n", b"\xff\xfe\n"])
def test_a_damaged_file_is_kept_as_a_copy_and_said(state, capsys, damage):
    before = entry(state="right").encode() + damage + entry("98.3", state="wrong").encode()
    write(state, before)
    check("98.1", 16)
    said = capsys.readouterr().out
    (kept,) = state.glob("progress.kept-*.jsonl")
    assert kept.read_bytes() == before
    assert kept.name in said and "line 2 cannot be read" in said and "2 events" in said
    assert [event["exercise"] for event in progress.events()] == ["98.1", "98.3", "98.1"]
    assert capsys.readouterr().out == ""


def test_a_newer_file_is_kept_as_a_copy_and_said(state, capsys):
    before = entry(state="right") + entry(v=2, state="right")
    write(state, before)
    check("98.1", 16)
    said = capsys.readouterr().out
    (kept,) = state.glob("progress.kept-*.jsonl")
    assert kept.read_text() == before
    assert "line 2 was written by a newer gpucourse (version 2)" in said


@pytest.fixture(params=["a file in its place", "under a file", "no space left"])
def unwritable(request, state, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    if request.param == "a file in its place":
        monkeypatch.setenv("GPUCOURSE_STATE", str(tmp_path / "file"))
    elif request.param == "under a file":
        monkeypatch.setenv("GPUCOURSE_STATE", str(tmp_path / "file" / "state"))
    else:
        write = os.write
        monkeypatch.setattr(progress.os, "write", lambda where, text: write(where, text[:9]))


@pytest.mark.usefixtures("unwritable")
def test_where_nothing_can_be_written_the_lesson_goes_on_and_says_so_once(capsys):
    check("98.1", 4)
    hint("98.1")
    hint("98.1")
    check("98.1", 16)
    said = capsys.readouterr().out
    assert said.count("Progress is not saved") == 1
    assert "set GPUCOURSE_STATE to a folder that can be written" in said
    assert "hint 2 of 3" in said and "98.1  ✓ right" in said
    assert progress.attempted("98.1")


def test_two_notebooks_at_once_lose_and_mix_nothing(state):
    program = ("from gpucourse.exercises import progress\n"
               "import sys\n"
               "for n in range(300): progress.add('guess', '98.g1', values={'n': n}, who=sys.argv[1])\n")
    both = [subprocess.Popen([sys.executable, "-c", program, who]) for who in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    events, fault = progress.read(state / "progress.jsonl")
    assert fault == ""
    for who in "ab":
        assert [event["values"]["n"] for event in events if event["who"] == who] == list(range(300))
