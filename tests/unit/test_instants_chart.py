"""The bars of a step's instants, the profile in force, and published tables."""

import io

import pytest
from PIL import Image

from gpucourse import draw, predict
from gpucourse.catalog import Job, pick, published, resolve, shape
from gpucourse.errors import BadInput
from gpucourse.measure.allocator import free_pieces


def test_the_picture_is_small_and_of_notebook_width():
    chart = draw(predict.memory(shape("gpt2"), Job(2, 256)).memory(), "states lead")
    data = chart._repr_png_()
    assert len(data) <= 60 * 1024 and Image.open(io.BytesIO(data)).size == (950, 320)
    assert "states lead (computed): peak" in str(chart)


def test_profiles(monkeypatch):
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_GPU", "GPUCOURSE_RUN"):
        monkeypatch.delenv(name, raising=False)
    assert resolve("auto") == "smoke" and pick("auto", smoke=1, lab=2) == 1
    monkeypatch.setenv("JPY_SESSION_NAME", "lesson.ipynb")
    assert resolve("auto") == "lab" and resolve("full") == "full"
    monkeypatch.setenv("GPUCOURSE_RUN", "somewhere")
    assert resolve("auto") == "smoke"
    with pytest.raises(BadInput, match="profile 'smoky' is not known; did you mean smoke"):
        resolve("smoky")


def test_published_tables_name_their_source():
    assert all(row["source"] for row in published("allocators"))
    with pytest.raises(BadInput, match="published table 'allocator' is not known; did you mean allocators"):
        published("allocator")


def test_free_pieces_of_a_snapshot():
    snapshot = [{"blocks": [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "inactive"}]},
                {"blocks": [{"size": 2048, "state": "inactive"}, {"size": 64, "state": "active_pending_free"}]}]
    assert free_pieces(snapshot) == [1024, 2048]
