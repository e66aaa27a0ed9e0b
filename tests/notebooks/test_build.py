"""Built notebooks: in step with their source, the same bytes each time, and free of what must not be committed."""

import json
import socket
from base64 import b64encode
from pathlib import Path

import nbformat
import pytest

from gpucourse.course import build as building
from gpucourse.course import sources
from gpucourse.course.build import BuildFailed, bank_of, build, out_of_step
from gpucourse.course.checkout import here
from gpucourse.course.lessons import lessons
from gpucourse.course.outputs import refused


def only(checkout):
    (lesson,) = lessons(checkout)
    return lesson


def test_the_committed_notebooks_are_in_step_with_their_sources():
    problems, _ = out_of_step(here())
    assert problems == []


def test_the_learners_notebook_lacks_solutions_and_outputs(checkout, lesson):
    source = lesson("01_sums")
    mine, solved = sources.learner(source), sources.solved(source)

    def answers(notebook):
        return [cell.source for cell in notebook.cells if "answer_1 =" in cell.source]

    assert answers(mine) == ["answer_1 = ..."]
    assert answers(solved) == ["answer_1 = ...", "answer_1 = 1 + 1"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in mine.cells if cell.cell_type == "code")
    assert {cell.id for cell in mine.cells} < {cell.id for cell in solved.cells}


def test_the_same_source_gives_the_same_bytes_and_distinct_ids(checkout, lesson):
    source = lesson("01_sums", "\n# %%\nx = 1\n\n# %%\nx = 1\n")
    first, second = sources.solved(source), sources.solved(source)
    assert sources.text(first) == sources.text(second)
    assert len({cell.id for cell in first.cells}) == len(first.cells)


def test_a_new_cell_leaves_the_other_ids_alone(checkout, lesson):
    before = [cell.id for cell in sources.solved(lesson("01_sums")).cells]
    after = [cell.id for cell in sources.solved(lesson("01_sums", "\n# %%\nnew = 1\n")).cells]
    assert after[:-1] == before


def test_build_executes_once_and_check_sees_what_changes(checkout, lesson, monkeypatch):
    source = lesson("01_sums")
    assert build(checkout, only(checkout)).startswith("executed")
    assert out_of_step(checkout) == ([], [])
    solved = checkout.solutions / "01_sums.ipynb"
    kept = nbformat.read(solved, as_version=4)
    assert kept.cells[-1].outputs[0].text == "answer 2\n"
    assert "papermill" not in solved.read_text()

    def never(*_, **__):
        raise AssertionError("a notebook that is up to date was executed")

    monkeypatch.setattr(building, "execute", never)
    assert build(checkout, only(checkout)) == "up to date"

    (checkout.root / "constraints.txt").write_text("torch==2.14.0\n")
    assert out_of_step(checkout) == ([], ["solutions/01_sums.ipynb was executed with another constraints"])
    source.write_text(source.read_text().replace("1 + 1", "2"))
    assert out_of_step(checkout)[0] == ["solutions/01_sums.ipynb is not what its source gives; run gpucourse build"]
    source.write_text(source.read_text().replace("One sentence", "Another sentence"))
    assert len(out_of_step(checkout)[0]) == 2
    (checkout.notebooks / "02_gone.ipynb").write_text("{}")
    assert "notebooks/02_gone.ipynb has no source" in out_of_step(checkout)[0]


def stream(text):
    return nbformat.v4.new_output("stream", text=text)


def picture(size):
    return nbformat.v4.new_output("display_data", {"image/png": b64encode(bytes(size)).decode()})


def test_a_lesson_depends_on_its_own_exercises_in_all_their_files(tmp_path):
    files = {"lesson_01": "from gpucourse.exercises.bank import peaks, states\n",
             "peaks": "from gpucourse.exercises.bank.model import small\nimport torch\n",
             "states": "from gpucourse.exercises.kinds import Quantity\n", "model": "", "lesson_02": "", "other": ""}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert {path.stem for path in bank_of("01", tmp_path)} == {"lesson_01", "peaks", "states", "model"}
    assert {path.stem for path in bank_of("02", tmp_path)} == {"lesson_02"} and bank_of("03", tmp_path) == []


@pytest.mark.parametrize(("outputs", "says"), [
    ([stream("see /home/someone/course/x.py")], "cell 1: its output holds a path ('/home/someone')"),
    ([stream("in /checkout/of/mine, line 3")], "cell 1: its output holds the checkout's path ('/checkout/of/mine')"),
    ([stream("pid 4711 waits")], "cell 1: its output holds a process id ('pid 4711')"),
    ([stream(f"on {socket.gethostname()}:")], f"cell 1: its output holds the host's name ({socket.gethostname()!r})"),
    ([stream("<object at 0x7f10aa2b3c40>")], "cell 1: its output holds an address in memory ('at 0x7f10aa2b3c40')"),
    ([picture(70_000)], "cell 1: a picture of 70,000 bytes; at most 61,440"),
    ([picture(100)] * 5, "5 pictures; at most 4"),
])
def test_outputs_that_must_not_be_kept_are_refused(outputs, says):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=outputs)])
    assert refused(notebook, Path("/checkout/of/mine")) == [says]


def test_ordinary_outputs_are_kept():
    outputs = [stream("2.31 GiB, 41.2 ± 0.8 samples/s, 12 GB/s/GPU, 3/4 on cpu (2 cores)"), *[picture(61_440)] * 4]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=outputs)])
    assert refused(notebook, Path("/checkout/of/mine")) == []


def test_build_keeps_no_notebook_whose_output_leaks(checkout, lesson):
    lesson("01_sums", "\n# %%\nimport os; print(os.getcwd())\n")
    with pytest.raises(BuildFailed, match="cell 6: its output holds"):
        build(checkout, only(checkout))
    assert not (checkout.solutions / "01_sums.ipynb").exists()


def test_a_failing_cell_keeps_the_notebook_built_before(checkout, lesson):
    lesson("01_sums")
    build(checkout, only(checkout))
    before = (checkout.solutions / "01_sums.ipynb").read_bytes()
    lesson("01_sums", "\n# %%\n1 / 0\n")
    with pytest.raises(BuildFailed, match="cell 6: ZeroDivisionError: division by zero"):
        build(checkout, only(checkout))
    assert (checkout.solutions / "01_sums.ipynb").read_bytes() == before


def test_a_damaged_notebook_is_out_of_step(checkout, lesson):
    lesson("01_sums")
    build(checkout, only(checkout))
    (checkout.solutions / "01_sums.ipynb").write_text(json.dumps({"cells": [1]}))
    assert len(out_of_step(checkout)[0]) == 1
