"""Guesses: blank, given, converted, refused, and how far off they were."""

import numpy
import pytest
from exercise_fixtures import examples  # noqa: F401

from gpucourse import compare, guess
from gpucourse.evidence import GUESS, Figure, Readings
from gpucourse.exercises import progress
from gpucourse.exercises.results import CheckFailed

pytestmark = pytest.mark.usefixtures("examples")


def columns(*peaks):
    return [Readings(kind, (Figure("peak allocated", value, "GiB", kind, "cpu"),)) for kind, value in peaks]


def test_a_guess_is_the_first_column_and_keeps_how_far_off_it_was():
    mine = guess("98.g1", 1.5, "GiB")
    table = str(compare(mine, *columns(("computed", 2.0), ("measured", 2.5))))
    assert GUESS in table.splitlines()[0]
    assert table.splitlines()[1].split()[:3] == ["peak", "allocated", "1.5"]
    given, off = progress.events()
    assert (given["event"], given["state"], given["values"]) == ("guess", "given", {"peak allocated": 1.5})
    assert off["event"] == "off" and off["off"]["peak allocated"] == pytest.approx(1.5 / 2.5 - 1)


def test_a_blank_guess_is_a_dash_and_is_never_off(capsys):
    mine = guess("98.g1", ..., "GiB")
    assert "no guess yet" in capsys.readouterr().out
    assert mine.readings().figures == ()
    compare(mine, *columns(("computed", 2.0)))
    assert [event["event"] for event in progress.events()] == ["guess"]
    assert progress.events()[0]["state"] == "blank"


def test_what_was_found_to_be_zero_or_not_at_all_gives_no_off():
    compare(guess("98.g1", 1, "GiB"), *columns(("computed", 0.0)))
    compare(guess("98.g1", 1, "GiB"))
    assert [event["event"] for event in progress.events()] == ["guess", "guess"]


@pytest.mark.parametrize("value, unit, gib", [
    (1536, "MiB", 1.5), (1.5 * 1024**3, "bytes", 1.5), (2, "TiB", 2048), (numpy.float32(1.5), "GiB", 1.5),
    ({"peak allocated": 3}, "GiB", 3)])
def test_units_convert(value, unit, gib):
    assert guess("98.g1", value, unit).values == {"peak allocated": pytest.approx(gib)}


def test_several_numbers_with_some_blank():
    assert guess("98.g2", {"neither": 0.009, "pinned": ...}, "s a step").values == {"neither": pytest.approx(9)}


@pytest.mark.parametrize("value, unit, said", [
    (-1, "GiB", "is -1: give a number of at least 0"),
    (float("nan"), "GiB", "is nan: give a number in GiB"),
    (None, "GiB", "is None: give a number in GiB"),
    ("1.5 GiB", "GiB", "is the text '1.5 GiB'"),
    ([1.5], "GiB", "is [1.5], a list"),
    (1.5, "s", "the unit is 's': give the guess in GiB, bytes, KiB, MiB, TiB"),
    (1.5, None, "the unit is None"),
    ({"peak": 1.5}, "GiB", "the guess has 'peak'"),
])
def test_a_guess_that_cannot_be_read_is_one_line_and_counts_as_blank(value, unit, said, capsys, monkeypatch):
    mine = guess("98.g1", value, unit)
    out = capsys.readouterr().out
    assert said in out and out.count("\n") == 1
    assert mine.readings().figures == ()
    monkeypatch.setenv("GPUCOURSE_STRICT", "1")
    with pytest.raises(CheckFailed, match=r"guess 98\.g1"):
        guess("98.g1", value, unit)


def test_a_guess_that_does_not_exist(capsys):
    assert guess("98.g9", 1, "GiB").readings().figures == ()
    assert "guess '98.g9' is not known; did you mean 98.g" in capsys.readouterr().out
