import csv

import pytest

from gpucourse.catalog.models import models
from gpucourse.live.serving import batches, queue
from gpucourse.predict.requests import Request
from gpucourse.predict.simulation import simulate
from gpucourse.settings import DATA

STORM = simulate([Request(0, 2, 4)] * 6, lambda tokens: 1.0 * tokens, lambda count: 1.0 + count, 6, 8, 2)
CALM = simulate([Request(0, 2, 4)], lambda tokens: 1.0 * tokens, lambda count: 1.0 + count, 6, 8, 2)


@pytest.mark.parametrize("picture", [
    batches("A title", {1: 0.01, 8: 0.02}, "measured on a device"),
    queue("A title", STORM.turns, "simulated"),
    queue("A title", CALM.turns, "simulated"),
], ids=["batches", "pre-empted", "calm"])
def test_a_picture_is_small_and_has_its_text(picture):
    png = picture._repr_png_()
    assert png.startswith(b"\x89PNG") and 5_000 < len(png) < 60_000
    assert str(picture).startswith("A title: ") and picture.where in str(picture)


def test_the_text_says_the_ends_of_the_curve():
    said = str(batches("t", {8: 0.02, 1: 0.01}, "w"))
    assert said == "t: 100 tokens/s at 10 ms a token with batch 1, 400 tokens/s at 20 ms a token with batch 8, w"


def test_the_text_says_how_many_ran_and_waited():
    assert STORM.preemptions > 0
    assert "at most 4 running and 4 waiting" in str(queue("t", STORM.turns, "w"))


def test_every_published_row_of_a_server_has_a_source_and_a_known_model():
    rows = list(csv.DictReader((DATA / "published" / "serving.csv").read_text().splitlines()))
    assert {row["case"] for row in rows} == {"A16", "A19", "C27"}
    for row in rows:
        assert "#" in row["source"] and row["model"] in models() and float(row["value"]) > 0
