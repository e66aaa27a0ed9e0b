"""The report: figures grouped as they were compared, runs side by side, and nothing loaded from elsewhere."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from gpucourse.course.page import page, tables


def figure(name, value, kind, device="", table="a"):
    return {"lesson": "01_sums", "table": table, "name": name, "value": value, "unit": "GiB", "kind": kind,
            "device": device, "source": ""}


FIGURES = [figure("peak", 1.5, "your guess"), figure("peak", 2.0, "computed"), figure("peak", 2.1, "measured", "cpu"),
           figure("peak", 4.0, "computed", table="b"), figure("peak", 4.4, "measured", "cpu", table="b")]


@pytest.fixture
def folder(tmp_path):
    """Write a run's folder: folder("laptop", figures)."""
    def write(name, figures=FIGURES, title="Sums", error=""):
        made = tmp_path / name
        made.mkdir()
        line = {"lesson": "01_sums", "title": title, "state": "failed" if error else "done", "seconds": 1.0,
                "error": error, "cell": 3, "exercise": "01.1" if error else "", "parameters": {}, "fingerprint": ""}
        (made / "summary.json").write_text(json.dumps({"solved": False, "versions": {"torch": "2.13.0"},
                                                       "devices": [{"label": f"{name} cpu"}], "lessons": [line]}))
        lines = [json.dumps(entry) for entry in figures]
        (made / "evidence.01_sums.jsonl").write_text("\n".join([*lines, '{"lesson": "torn']))
        return made
    return write


def test_a_reading_that_comes_again_begins_the_next_table():
    first, second = tables(FIGURES)
    assert [(column.kind, column.figures[0].value) for column in first] == [
        ("your guess", 1.5), ("computed", 2.0), ("measured", 2.1)]
    assert [(column.kind, column.figures[0].value) for column in second] == [("computed", 4.0), ("measured", 4.4)]


def rows(html):
    """The report's table rows as lists of text."""
    body = ElementTree.fromstring(html.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', "").replace("<br>", ""))
    return [["".join(cell.itertext()) for cell in row] for row in body.iter("tr")]


def test_the_report_shows_each_kind_with_its_distance_from_the_prediction(folder):
    found = rows(page([folder("laptop")]))
    assert ["peak", "1.5−25.0%", "2", "2.1+5.0%", "GiB"] in found
    assert ["peak", "4", "4.4+10.0%", "GiB"] in found


def test_machines_stand_side_by_side_each_held_against_its_own_prediction(folder):
    other = [figure("peak", 3.0, "computed"), figure("peak", 6.0, "measured", "gpu")]
    found = rows(page([folder("laptop"), folder("node", other)]))
    assert ["", "laptop", "node", ""] in found
    assert ["peak", "1.5−25.0%", "2", "2.1+5.0%", "3", "6+100.0%", "GiB"] in found


def test_what_a_lesson_says_cannot_break_the_page(folder):
    html = page([folder("laptop", title="<script>alert(1)</script>", error="ValueError: a < b & c")])
    assert "<script" not in html and "a &lt; b &amp; c" in html
    assert "src=" not in html and "url(" not in html and "http" not in html
