"""The states of a check, what it says, what it raises and what it never raises."""

import subprocess
import sys

import pytest
from exercise_fixtures import EXAMPLES, examples  # noqa: F401

from gpucourse import check
from gpucourse.exercises import banks, checking, progress
from gpucourse.exercises.checking import examine
from gpucourse.exercises.results import CheckFailed, Mark, Result
from gpucourse.exercises.view import marked, result_lines

pytestmark = pytest.mark.usefixtures("examples")


def double(values, call):
    call(values)
    return values + values


def says(id, answer, **more):
    return str(result_lines(examine(id, answer, **more)))


def test_a_right_number_and_a_misconception():
    assert says("98.1", 16) == "98.1  ✓ right: 16 bytes a parameter"
    assert says("98.1", 4).splitlines() == [
        "98.1  ✗ wrong: 4 bytes a parameter",
        "      That counts the weights only: what else does AdamW keep?",
        '      hint("98.1") has 3 steps; none used']


def test_an_unknown_wrong_number_gets_its_direction_and_never_the_answer():
    assert "It is too high." in says("98.1", 17)
    assert "It is too low by more than a factor of 10." in says("98.1", 1.1)
    assert "16" not in says("98.1", 17)


@pytest.mark.parametrize("factor", [1024, 1 / 1024, 1000, 1e-9])
def test_a_right_number_in_another_unit_is_said(factor):
    assert "the unit is not: give it in bytes a parameter" in says("98.1", 16 * factor)


def test_the_expected_value_may_depend_on_what_was_measured():
    assert examine("98.2", 5, given=5 * 1024**3).state == "right"
    assert "GB, not GiB." in says("98.2", 5 * 1.0737, given=5 * 1024**3)
    assert "pass it as check(…, given=…)" in says("98.2", 5)


def test_a_wrong_choice_says_what_it_mistakes():
    assert says("98.3", "c").splitlines()[:2] == ["98.3  ✗ wrong: c", "      It caches, it does not pin."]


def test_each_part_has_its_line():
    assert says("98.4", {"weights": 2, "gradients": 0.5, "peak at": ...}).splitlines() == [
        "98.4  ✗ wrong (1 of 3 parts)",
        "      ✓ weights      2 GiB",
        "      ✗ gradients: 0.5 GiB",
        "        Autocast keeps them in fp32.",
        "      ✗ peak at: not attempted",
        '      hint("98.4") has 2 steps; none used']


def test_code_that_is_right_and_code_that_is_not():
    assert examine("98.5", double).state == "right"
    assert "✗ communication: 3 calls, at most 1 allowed for one bucket" in says(
        "98.5", banks.load("98").chatty)


def test_an_exception_in_the_learners_function_names_its_line():
    def failing(values, call):
        return values.nothing

    result = examine("98.5", failing)
    assert result.state == "error"
    assert "AttributeError" in result.says and "check itself" not in result.says
    assert "in failing()" in result.note and "return values.nothing" in result.note


@pytest.mark.parametrize("function", [lambda: 0, lambda values: values])
def test_a_function_with_other_parameters_is_the_learners_error(function):
    result = examine("98.5", function)
    assert result.state == "error"
    assert "TypeError" in result.says and "check itself" not in result.says


def test_a_check_that_fails_says_so_and_never_wrong():
    said = says("97.1", 1)
    assert "error in the check itself" in said and "No module named 'nowhere'" in said
    assert "wrong" not in said


def test_a_bank_that_cannot_be_imported_is_an_error_in_the_check(tmp_path, monkeypatch):
    from gpucourse.exercises import bank

    (tmp_path / "lesson_95.py").write_text("import nowhere")
    monkeypatch.setattr(bank, "__path__", [str(tmp_path)])
    assert "error in the check itself" in says("95.1", 1)


def test_missing_hardware_is_skipped_neither_right_nor_wrong(monkeypatch):
    monkeypatch.setattr(checking, "gpus", lambda: 1)
    assert says("98.6", 1) == ("98.6  – skipped: needs 99 GPUs (this machine has 1). "
                               "The recorded result is shown below.")
    monkeypatch.setattr(checking, "gpus", lambda: 99)
    assert examine("98.6", 1).state == "right"


@pytest.mark.parametrize("id, said", [
    ("98.77", "did you mean 98."), ("77.1", "lessons with exercises: "), ("981", "did you mean 98.1?"),
    (98.1, 'it is a text such as "01.1"'), (None, "it is a text"), ("", "is not known"),
])
def test_an_exercise_that_does_not_exist(id, said):
    result = examine(id, 1)
    assert result.state == "error"
    assert said in result.says
    assert progress.events() == []


def test_nothing_is_raised_to_the_learner(capsys):
    for answer in (4, None, ...):
        check("98.1", answer)
    check("97.1", 1)
    check("98.99", 1)
    assert capsys.readouterr().out.count("\n9") >= 4


@pytest.mark.parametrize("id, answer", [("98.1", 4), ("98.1", None), ("97.1", 1), ("98.99", 1)])
def test_strict_raises_for_wrong_and_error(monkeypatch, id, answer):
    monkeypatch.setenv("GPUCOURSE_STRICT", "1")
    with pytest.raises(CheckFailed, match=f"exercise {id}"):
        check(id, answer)


def test_strict_raises_for_a_missing_answer_only_in_a_solved_notebook(monkeypatch):
    monkeypatch.setenv("GPUCOURSE_STRICT", "1")
    check("98.1", ...)
    check("98.1", 16)
    monkeypatch.setenv("GPUCOURSE_SOLVED", "1")
    with pytest.raises(CheckFailed, match=r"exercise 98\.1"):
        check("98.1", ...)
    monkeypatch.delenv("GPUCOURSE_STRICT")
    check("98.1", ...)


def test_skipped_never_raises(monkeypatch):
    monkeypatch.setenv("GPUCOURSE_STRICT", "1")
    monkeypatch.setenv("GPUCOURSE_SOLVED", "1")
    monkeypatch.setattr(checking, "gpus", lambda: 0)
    check("98.6", ...)


def test_the_html_says_what_the_text_says():
    lines = result_lines(examine("98.4", {"weights": 2, "gradients": 0.5, "peak at": "step"}))
    page = lines._repr_html_()
    for part in ("<b>98.4</b>", "wrong (2 of 3 parts)", "✗ gradients: 0.5 GiB", '<code>hint("98.4")</code>'):
        assert part in page
    assert "<pre" not in page


def test_code_in_a_line_is_set_as_code():
    assert marked('Call `fn(x < 1)`, then `hint("01.3")` or hint("01.3").') == (
        'Call <code>fn(x &lt; 1)</code>, then <code>hint("01.3")</code> or <code>hint("01.3")</code>.')


def test_a_word_between_asterisks_is_stressed_and_a_product_is_not():
    assert marked("Keys *and* values: 2 * n*h*2") == "Keys <em>and</em> values: 2 * n*h*2"


def test_what_is_wrong_twice_in_the_same_way_is_explained_once():
    note = "A GiB is 2³⁰ bytes."
    marks = tuple(Mark(what, ok=False, seen="9", note=note) for what in ("model 1", "model 2"))
    said = str(result_lines(Result("98.4", "wrong", marks=marks)))
    assert said.count(note) == 1 and "model 2: 9 (as for model 1)" in said and "model 1: 9\n" in said


def test_the_same_part_of_another_case_is_named_by_the_case():
    marks = tuple(Mark(f"{case}: the peak", ok=False, note="Count the logits as well.") for case in ("one", "two"))
    said = str(result_lines(Result("98.4", "wrong", marks=marks)))
    assert "two: the peak (as for one)\n" in f"{said}\n"


def test_a_note_shorter_than_its_reference_is_said_again():
    marks = tuple(Mark(what, ok=False, note="Too low.") for what in ("stage 0", "stage 2"))
    assert str(result_lines(Result("98.4", "wrong", marks=marks))).count("Too low.") == 2


def test_text_of_the_learner_is_escaped_in_html():
    assert "<img" not in result_lines(examine("98.1", "<img src=x>"))._repr_html_()


def test_an_arithmetic_check_imports_neither_torch_nor_numpy(tmp_path):
    program = (
        "import sys\n"
        "from gpucourse.exercises import bank, check\n"
        f"bank.__path__.append({str(tmp_path)!r})\n"
        "check('96.1', 2)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'IPython', 'ipywidgets')))\n")
    (tmp_path / "lesson_96.py").write_text(
        "from gpucourse.exercises.kinds import Number\n"
        "EXERCISES = (Number('96.1', 'Two', expected=lambda: 2, unit='', hints=('a', 'b')),)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={"PATH": "", "GPUCOURSE_STATE": str(tmp_path)})
    assert (done.stdout, done.returncode) == ("96.1  ✓ right: 2\n", 0), done.stderr


def test_importing_the_room_imports_nothing_heavy():
    program = ("import sys, gpucourse.exercises\n"
               "sys.exit(any(n in sys.modules for n in ('torch', 'numpy', 'IPython', 'ipywidgets', 'anywidget')))")
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_example_bank_is_where_the_fixture_looks():
    assert (EXAMPLES / "lesson_98.py").exists() and "98" in banks.lessons()
