"""Figures, comparisons and the run's record."""

import json

import pytest

from gpucourse.errors import BadInput
from gpucourse.evidence import (
    GUESS,
    REST,
    Figure,
    Memory,
    Readings,
    column,
    columns_text,
    compare,
    number,
    percent,
    record,
    table_html,
)

COMPUTED = column("computed", {"peak allocated": 2.0, "weights": 0.5, REST: 1.5}, "GiB")
CPU = "cpu (2 cores)"
MEASURED = column("measured", {"peak allocated": 2.1, "weights": 0.5, REST: 1.6, "high water": 2.4}, "GiB", CPU)
BLANK = Readings(GUESS, ())


def test_a_figure_names_its_kind_and_its_device():
    with pytest.raises(BadInput, match="'mesured' is not known; did you mean measured"):
        Figure("peak", 1.0, "GiB", "mesured")
    with pytest.raises(BadInput, match="'peak' is measured: it must name its device"):
        Figure("peak", 1.0, "GiB", "measured")


def test_rows_are_the_union_in_order_and_off_is_the_last_against_the_first_prediction():
    table = compare(COMPUTED, MEASURED).table()
    assert [row[0] for row in table] == ["", "peak allocated", "weights", REST, "high water", ""]
    peak = table[1]
    assert peak[1:5] == ["2", "2.1", "GiB", "+5 %"] and peak[5] == f"{REST}: 0.1"
    assert table[4][1] == "–" and table[4][4] == ""
    assert table[-1][2] == "cpu (2 cores)"


def test_the_guess_comes_first_and_is_not_what_off_refers_to():
    guess = column(GUESS, {"peak allocated": 9.0}, "GiB")
    table = compare(guess, COMPUTED, MEASURED).table()
    assert table[0][1] == GUESS and table[1][1] == "9" and table[1][5] == "+5 %"


def test_several_guesses_are_one_column_and_a_blank_one_is_still_shown():
    two = column(GUESS, {"peak allocated": 9.0}, "GiB"), column(GUESS, {"throughput": 3.0}, "samples/s")
    assert compare(*two, COMPUTED).table()[0] == ["", GUESS, "computed", "unit", "off"]
    assert compare(BLANK, COMPUTED).table()[1][1] == "–"


def test_nothing_is_explained_where_nothing_is_left():
    same = column("dry run", {"peak allocated": 2.0, "weights": 0.5, REST: 1.5}, "GiB")
    assert "explained by" not in compare(COMPUTED, same).table()[0]


def test_peaks_at_two_instants_are_not_explained_by_a_part():
    """Parts at the peak are then parts at two moments, which say nothing of each other."""
    early = Memory({"loss": {"weights": 3, "activations": 5}, "step": {"weights": 3, "activations": 4}}, "computed")
    late = Memory({"loss": {"weights": 3, "activations": 5}, "step": {"weights": 3, "activations": 7}}, "dry run")
    assert compare(early, late).table()[1][-1] == "the peak is at step, not at loss"
    apart = Memory({"loss": {"weights": 3, "activations": 5}}, "computed")
    assert "not at" not in str(compare(apart, late))  # it knows of no other instant


def test_what_cannot_be_compared_is_said():
    with pytest.raises(BadInput, match="compare was given float"):
        compare(COMPUTED, 3.0)


def test_a_guess_is_told_what_it_was_compared_with():
    class Told:
        def readings(self):
            return BLANK

        def seen(self, comparison):
            self.columns = len(comparison.columns)

    told = Told()
    compare(told, COMPUTED, MEASURED)
    assert told.columns == 3


def test_memory_finds_its_peak_and_reads_by_category():
    at = {"loss": {"weights": 4, "gradients": 0, "optimizer": 8, "activations": 20, "temporaries": 2},
          "step": {"weights": 4, "gradients": 4, "optimizer": 8, "activations": 0, "temporaries": 4}}
    memory = Memory(at, "computed", also={"high water": 99})
    assert (memory.peak, memory.peak_at) == (34, "loss")
    values = {f.name: f.value for f in memory.readings("bytes").figures}
    assert values == {"peak allocated": 34, "at loss": 34, "at step": 20, "weights": 4, "gradients": 0, "optimizer": 8,
                      REST: 22, "high water": 99}


@pytest.mark.parametrize("value, text", [(1234567, "1,234,567"), (0.07241, "0.07241"), (2.5e-7, "2.500e-07"),
                                         (123456.7, "1.235e+05"), (0.0, "0")])
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize("fraction, text", [(0.009, "+0.9 %"), (-0.25, "-25 %"), (1e-7, "0 %"), (0.0042, "+0.42 %"),
                                            (1.7, "+170 %")])
def test_percents(fraction, text):
    assert percent(fraction) == text


def test_tables_as_text_and_html():
    table = [["", "GiB"], ["a<b", "1.25"], ["c", "10"]]
    assert columns_text(table) == "      GiB\na<b  1.25\nc      10"
    html = table_html(table)
    assert "a&lt;b" in html and 'align="left"' in html and 'align="right"' in html


def test_a_run_keeps_its_figures_and_without_a_run_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUCOURSE_RUN", raising=False)
    monkeypatch.chdir(tmp_path)
    record(Figure("peak", 1.0, "GiB", "computed"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("GPUCOURSE_RUN", str(tmp_path))
    monkeypatch.setenv("GPUCOURSE_LESSON", "01_memory_anatomy")
    compare(COMPUTED, MEASURED)
    record(Figure("other", float("nan"), "s", "computed"), Figure("time", 2.0, "s", "computed"))
    lines = [json.loads(line) for line in (tmp_path / "evidence.01_memory_anatomy.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines][-1] == "time" and len(lines) == 8
    assert len({line["table"] for line in lines}) == 2
    assert lines[3] == {"lesson": "01_memory_anatomy", "table": lines[0]["table"], "name": "peak allocated",
                        "value": 2.1, "unit": "GiB", "kind": "measured", "device": CPU, "source": ""}
