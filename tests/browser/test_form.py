"""A choice, a number and an answer of several parts are given in JupyterLab by keyboard alone, and nothing is blank
when the notebook is reopened without its kernel."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytestmark = pytest.mark.browser

EXAMPLES = Path(__file__).parents[1] / "unit" / "example_bank"
CHOICE, NUMBER, PARTS = 2, 3, 4
RADIO = ".gpucourse-form input[type=radio]"


@pytest.fixture
def notebook(home, open_notebook):
    cells = [
        new_markdown_cell("### 98.3 What pins it\n\nAn exception leaves 2 GiB allocated. What holds them?"),
        new_code_cell(f"from gpucourse import question\nfrom gpucourse.exercises import bank\n"
                      f"bank.__path__.append({str(EXAMPLES)!r})"),
        new_code_cell('question("98.3")'),
        new_code_cell('question("98.1")'),
        new_code_cell('question("98.4")'),
    ]
    file = home / "notebooks" / "form.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3",
                                                                      "language": "python"}}), file)
    opened = open_notebook(file.name)
    opened.run_all()
    opened.wait_idle(4)
    opened.page.wait_for_selector(RADIO)
    opened.page.wait_for_selector(".gpucourse-form input[type=text]")
    return opened


def shown(notebook, cell, text):
    """Wait until the saved output below the form says `text`."""
    notebook.outputs(cell).filter(has_text=text).last.wait_for()


def focused(notebook):
    return notebook.page.evaluate("""() => [document.activeElement.type, document.activeElement.value ?? '']""")


def enter(notebook, cell):
    """With the cell active in command mode, as arrows and Escape leave it, press Tab until its form has the focus."""
    notebook.page.evaluate("""i => { const notebook = jupyterapp.shell.currentWidget.content;
        notebook.activeCellIndex = i; notebook.mode = 'command'; notebook.activeCell.node.focus(); }""", cell)
    for _ in range(12):
        notebook.page.keyboard.press("Tab")
        inside = notebook.page.evaluate(
            """i => document.querySelectorAll('.jp-Notebook .jp-Cell')[i].querySelector('.gpucourse-form')
                   .contains(document.activeElement)""", cell)
        if inside:
            return
    raise AssertionError(f"Tab never reached the form of cell {cell}; it is at {focused(notebook)}")


def test_a_choice_is_answered_by_keyboard_alone(notebook):
    keyboard = notebook.page.keyboard
    enter(notebook, CHOICE)
    keyboard.press("Space")
    assert focused(notebook) == ["radio", "a"]
    keyboard.press("Enter")
    shown(notebook, CHOICE, "✗ wrong: a")
    shown(notebook, CHOICE, "Its state is as large before the exception as after.")
    notebook.screenshot("form_wrong")
    keyboard.press("ArrowDown")
    assert focused(notebook) == ["radio", "b"]
    keyboard.press("Tab")
    assert focused(notebook)[0] == "submit"
    keyboard.press("Space")
    shown(notebook, CHOICE, "✓ right: b")
    spoken = notebook.page.locator(".gpucourse-form output[aria-live=polite]").first
    assert "✓ right: b" in spoken.inner_text()
    notebook.screenshot("form_right")


def test_the_same_answer_can_be_given_twice(notebook):
    enter(notebook, CHOICE)
    notebook.page.keyboard.press("Space")
    for _ in range(2):
        notebook.page.keyboard.press("Enter")
        notebook.page.wait_for_function("!document.querySelector('.gpucourse-waiting')")  # Enter sets it
        shown(notebook, CHOICE, "✗ wrong: a")


def test_a_number_is_typed_and_its_keys_are_not_the_notebooks(notebook):
    cells = notebook.page.locator(".jp-Notebook .jp-Cell").count()
    keyboard = notebook.page.keyboard
    enter(notebook, NUMBER)
    keyboard.type("dda b x")  # in command mode these would delete and insert cells
    keyboard.press("Enter")
    shown(notebook, NUMBER, "give a number in bytes a parameter")
    keyboard.press("Control+a")
    keyboard.type("16")
    keyboard.press("Enter")
    shown(notebook, NUMBER, "✓ right: 16 bytes a parameter")
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == cells
    notebook.screenshot("form_number")


def test_an_answer_of_several_parts_is_given_one_after_the_other(notebook):
    keyboard = notebook.page.keyboard
    enter(notebook, PARTS)
    keyboard.type("2")
    keyboard.press("Enter")
    shown(notebook, PARTS, "✗ wrong (1 of 3 parts)")
    shown(notebook, PARTS, "gradients: not attempted")
    keyboard.press("Tab")
    keyboard.type("0.5")
    keyboard.press("Tab")
    keyboard.press("Space")
    assert focused(notebook) == ["radio", "step"]
    keyboard.press("Enter")
    shown(notebook, PARTS, "✗ wrong (2 of 3 parts)")
    shown(notebook, PARTS, "Autocast keeps them in fp32.")
    notebook.screenshot("form_parts")
    keyboard.press("Shift+Tab")
    keyboard.press("Control+a")
    keyboard.type("1")
    keyboard.press("Enter")
    shown(notebook, PARTS, "✓ right")


def test_nothing_is_blank_after_save_restart_and_reopening(notebook, home):
    enter(notebook, CHOICE)
    notebook.page.keyboard.press("Space")
    notebook.page.keyboard.press("Enter")
    shown(notebook, CHOICE, "✗ wrong: a")
    notebook.save()
    saved = nbformat.read(home / "notebooks" / "form.ipynb", as_version=4)
    kinds = {kind for cell in saved.cells if cell.cell_type == "code" for output in cell.outputs
             for kind in output.get("data", {})}
    assert kinds == {"text/plain", "text/html"}  # no widget view
    assert "widgets" not in saved.metadata
    notebook.restart_kernel()
    notebook.page.wait_for_function("!document.querySelector('.gpucourse-form')")
    notebook.open()
    assert notebook.page.locator(".gpucourse-form").count() == 0
    for cell in (CHOICE, NUMBER, PARTS):
        texts = notebook.outputs(cell).all_inner_texts()
        assert len(texts) == 2 and all(text.strip() for text in texts)
        assert "model not found" not in "".join(texts)
        assert "run this cell to answer in a form" in texts[0]
    assert "✗ wrong: a" in notebook.outputs(CHOICE).last.inner_text()
    notebook.screenshot("form_reopened")


def test_the_form_is_readable_in_the_dark_theme(notebook):
    notebook.page.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    notebook.page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    enter(notebook, CHOICE)
    notebook.page.keyboard.press("Space")
    notebook.page.wait_for_timeout(500)  # the theme's stylesheet follows its attribute
    colours = notebook.page.evaluate("""() => { const form = document.querySelector('.gpucourse-form');
        const light = c => c.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3;
        return [light(getComputedStyle(form).color), light(getComputedStyle(document.querySelector('.jp-Notebook'))
                .backgroundColor)]; }""")
    notebook.screenshot("form_dark")
    notebook.page.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})")
    assert colours[0] - colours[1] > 120, colours
