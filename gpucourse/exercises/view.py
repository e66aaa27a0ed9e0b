"""How a check, a hint or a guess reads: lines of text, and the same lines as HTML that GitHub shows too."""

import html
import re
import sys
import textwrap
from dataclasses import dataclass

from gpucourse.exercises.results import Mark, Result

SIGNS = {"right": "✓", "wrong": "✗", "error": "✗", "not attempted": "·", "skipped": "–"}
WIDTH = 110
LIST = '<dl style="margin: 0">{}</dl>'  # indents also where styles are stripped
ROW = '<dd style="margin: 0 0 0 2em">{}</dd>'
INDENTED = (ROW, ROW.format(LIST.format(ROW)))


@dataclass(frozen=True)
class Lines:
    """Text that a notebook shows as it is: the id, a first line, and below it lines of (depth, text), depth 0 or 1."""

    id: str
    first: str
    below: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        margin = len(self.id) + 2
        texts = [textwrap.fill(text, WIDTH, initial_indent=" " * (margin + 2 * depth),
                               subsequent_indent=" " * (margin + 2 * depth)) for depth, text in self.below]
        return "\n".join([f"{self.id}  {self.first}", *texts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        below = "".join(INDENTED[depth].format(marked(text)) for depth, text in self.below)
        below = LIST.format(below) if below else ""
        return f"<div><b>{html.escape(self.id)}</b>&ensp;{marked(self.first)}{below}</div>"


def marked(text: str) -> str:
    """Escaped text in which a call such as hint("01.3"), and what stands between backticks, is set as code, a word
    between asterisks stressed, and a run of spaces stays a gap."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`|\b((?:check|hint|solution)\([^()]*\))", r"<code>\1\2</code>", text)
    text = re.sub(r"(?<![\w*`])\*(\w+)\*(?![\w*`])", r"<em>\1</em>", text)
    return re.sub("  +", "&emsp;", text)


def show(text: object) -> None:
    """Display in a notebook, print elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(text)
    else:
        print(text)


def result_lines(result: Result) -> Lines:
    below = []
    if len(result.marks) > 1:
        width = max((len(mark.what) for mark in result.marks if mark.ok and mark.seen), default=0)
        said: dict[str, str] = {}
        for mark in result.marks:
            same = f" (as for {shortly(said[mark.note], mark.what)})" if mark.note in said else ""
            same = same if len(same) < len(mark.note) else ""  # a short note is said again
            below.append((0, mark_line(mark, width) + same))
            if mark.note and not same:
                below.append((1, mark.note))
                said[mark.note] = mark.what
    if result.note:
        below.append((0, result.note))
    if result.hints and result.state in ("wrong", "not attempted"):
        below.append((0, hints_line(result)))
    return Lines(result.id, first_line(result), tuple(below))


def shortly(earlier: str, what: str) -> str:
    """`table 1` for `table 1: the first of all`, said of `table 2: the first of all`."""
    (case, _, thing), (_, _, same) = earlier.partition(": "), what.partition(": ")
    return case if thing and thing == same else earlier


def first_line(result: Result) -> str:
    head = f"{SIGNS[result.state]} {result.state}"
    if result.state == "wrong" and len(result.marks) > 1:
        right, parts = result.parts
        return f"{head} ({right} of {parts} parts)"
    return f"{head}: {result.says}" if result.says else head


def mark_line(mark: Mark, width: int) -> str:
    if mark.ok:
        return f"✓ {mark.what.ljust(width)}      {mark.seen}".rstrip()
    return f"✗ {mark.what}: {mark.seen}" if mark.seen else f"✗ {mark.what}"


def hints_line(result: Result) -> str:
    steps = "1 step" if result.hints == 1 else f"{result.hints} steps"
    used = {0: "none", result.hints: "all"}.get(result.hints_used, result.hints_used)
    after = f'; solution("{result.id}") shows the answer' if used == "all" else ""
    return f'hint("{result.id}") has {steps}; {used} used{after}'
