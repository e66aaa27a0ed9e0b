"""A training cell in JupyterLab: the chart moves while the cell is busy, and stays when the kernel has gone."""

import json
import shutil
import time
from pathlib import Path

import nbformat
import pytest
from lab import DEADLINE

from gpucourse.settings import NOTEBOOKS

pytestmark = pytest.mark.browser

TRAINED = 300  # seconds that a lesson's training may take on a busy machine
TRAINING = """
import time
import torch
from gpucourse import watch
from gpucourse.catalog import MiB

model = torch.nn.Sequential(*[torch.nn.Linear(768, 768) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(256, 768)
with watch("training", budget=160 * MiB) as w:
    begin = time.perf_counter()
    while time.perf_counter() - begin < {seconds}:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)
        w.step(len(data))
"""

ON_RANKS = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
from gpucourse import ranks, watch

def train(seconds):
    model = DistributedDataParallel(torch.nn.Linear(512, 512))
    optimizer = torch.optim.AdamW(model.parameters())
    with watch("two ranks") as w:
        for step in range(round(seconds / 0.03)):
            model(torch.randn(64, 512)).square().mean().backward()
            optimizer.step()
            time.sleep(0.03)
            w.step(64)

ranks.run(train, 2, {seconds})
"""


def notebook_of(home, name: str, *cells: str) -> Path:
    """A notebook in JupyterLab's folder."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Training, watched"),
                                               *map(nbformat.v4.new_code_cell, cells)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = home / "notebooks" / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def training_notebook(home):
    """Its first cell with `with watch(` trains for some seconds."""
    return notebook_of(home, "training", TRAINING.format(seconds=12))


@pytest.fixture
def ranks_notebook(home):
    """The same on two ranks."""
    return notebook_of(home, "ranks", ON_RANKS.format(seconds=12))


@pytest.fixture
def lesson_notebook(home):
    """The learner's lesson 01, in JupyterLab's folder."""
    return Path(shutil.copy(NOTEBOOKS / "01_memory_anatomy.ipynb", home / "notebooks"))


@pytest.mark.parametrize("source", ["training_notebook", "ranks_notebook",
                                    pytest.param("lesson_notebook", marks=pytest.mark.slow)])
def test_moves_while_busy_and_stays_after_a_restart(source, request, open_notebook):
    path = request.getfixturevalue(source)
    watched = _watched_cell(path)
    notebook = open_notebook(path.name)
    notebook.run_all()
    chart = notebook.outputs(watched).locator("svg[role=img]")
    chart.wait_for()
    notebook.outputs(watched).first.scroll_into_view_if_needed()  # the chart itself is a new one at each drawing
    frames = [_frame(notebook, chart) for _ in range(3)]
    notebook.screenshot(f"{path.stem}_busy")
    assert len(set(frames)) == 3, "the chart stood still while the cell was busy"

    picture, line = _finished(notebook, watched)
    notebook.screenshot(f"{path.stem}_ended")
    assert chart.count() == 0
    notebook.save()
    _saved_as_a_picture(path, watched)

    notebook.restart_kernel()
    notebook.open()
    again, same = _finished(notebook, watched)
    notebook.outputs(watched).locator("img").first.scroll_into_view_if_needed()
    notebook.screenshot(f"{path.stem}_reopened")
    assert (again, same) == (picture, line)
    assert "model not found" not in notebook.page.locator(".jp-Notebook").inner_text()


def test_an_interrupt_leaves_a_picture_and_a_line(training_notebook, open_notebook):
    watched = _watched_cell(training_notebook)
    notebook = open_notebook(training_notebook.name)
    notebook.run_all()
    notebook.outputs(watched).locator("svg[role=img]").wait_for()
    notebook.command("notebook:interrupt-kernel")
    _, line = _finished(notebook, watched)
    notebook.screenshot("training_interrupted")
    assert "training: interrupted; its tensors are released; peak" in line


def test_a_chart_of_ranks_names_them(ranks_notebook, open_notebook):
    notebook = open_notebook(ranks_notebook.name)
    notebook.run_all()
    chart = notebook.outputs(_watched_cell(ranks_notebook)).locator("svg[role=img]")
    chart.wait_for()
    drawing, deadline = chart.inner_html(), time.monotonic() + DEADLINE
    while not ("rank 0" in drawing and "rank 1" in drawing) and time.monotonic() < deadline:
        drawing = _frame(notebook, chart)  # one rank may be heard before the other
    assert "rank 0" in drawing and "rank 1" in drawing


def _watched_cell(path) -> int:
    cells = json.loads(path.read_text())["cells"]
    return next(i for i, cell in enumerate(cells) if "with watch(" in "".join(cell["source"]))


def _frame(notebook, chart) -> str:
    """The chart's markup, once it differs from what it was, read while the kernel is busy."""
    before, deadline = chart.inner_html(), time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        now = chart.inner_html()
        if now != before:
            assert notebook.busy()
            return now
        time.sleep(0.05)
    raise AssertionError("the chart stood still")


def _finished(notebook, watched: int) -> tuple[str, str]:
    """The picture in a cell's output, as its data URL, and the line of text below it."""
    picture = notebook.outputs(watched).locator("img").first
    picture.wait_for(timeout=1000 * TRAINED)
    line = notebook.outputs(watched).locator("pre", has_text="measured on").first
    line.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth") == 950
    return picture.get_attribute("src"), line.inner_text()


def _saved_as_a_picture(path, watched: int) -> None:
    outputs = [output.get("data", {}) for output in json.loads(path.read_text())["cells"][watched]["outputs"]]
    picture = next(data["image/png"] for data in outputs if "image/png" in data)
    assert len(picture) * 3 / 4 <= 60 * 1024
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in outputs)
