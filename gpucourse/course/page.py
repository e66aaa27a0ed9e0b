"""report.html: what one batch run found, or several machines side by side, as one file that needs no other."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from gpucourse.course import record
from gpucourse.course.answered import Answers, answers
from gpucourse.evidence import GUESS, KINDS, Comparison, Figure, Readings, number

_STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Run:
    """One run's folder, read. label: what tells it from the others."""

    label: str
    summary: dict
    figures: dict[str, list[dict]]
    answers: dict[str, Answers]

    def lesson(self, name: str) -> dict | None:
        return next((line for line in self.summary["lessons"] if line["lesson"] == name), None)

    @property
    def devices(self) -> str:
        return " · ".join(device["label"] for device in self.summary["devices"])


def read(folder: Path) -> Run:
    """A run's folder, also one that is still being written."""
    summary = record.read(folder)
    names = [line["lesson"] for line in summary["lessons"]]
    return Run(folder.name, summary, {name: record.evidence(folder, name) for name in names}, answers(folder))


def page(folders: list[Path]) -> str:
    """The report of these runs as one HTML document."""
    runs = [read(folder) for folder in folders]
    names = {line["lesson"]: line["title"] for run in runs for line in run.summary["lessons"]}
    parts = [_head(runs), _overview(runs, sorted(names))]
    parts += [_lesson(runs, name, names[name]) for name in sorted(names)]
    style = _STYLE.read_text(encoding="utf-8")
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>gpucourse report</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>\n{style}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _head(runs: list[Run]) -> str:
    lines = ["<h1>What the lessons found</h1>"]
    for run in runs:
        kind = "solutions" if run.summary["solved"] else "the learner’s notebooks"
        versions = ", ".join(f"{name} {version}" for name, version in run.summary["versions"].items())
        lines.append(f"<p><b>{escape(run.label)}</b> · {escape(run.devices)} · {kind}<br>"
                     f'<span class="soft">{escape(versions)}</span></p>')
    return "\n".join(lines)


def _overview(runs: list[Run], names: list[str]) -> str:
    columns = ["state", "seconds", "right", "wrong", "not attempted"]
    head = ["<th>lesson</th>" + "".join(f"<th>{column}</th>" for _ in runs for column in columns)]
    if len(runs) > 1:
        head.insert(0, "<th></th>" + _spans((run.label, len(columns)) for run in runs))
    rows = []
    for name in names:
        row = [f'<td><a href="#{name}">{escape(name)}</a></td>']
        for run in runs:
            row += _overview_cells(run.lesson(name), run.answers.get(name[:2], Answers()))
        rows.append("".join(row))
    return _table(head, rows)


def _overview_cells(line: dict | None, answered: Answers) -> list[str]:
    if line is None:
        return ["<td>–</td>"] * 5
    cells = [f'<td class="edge {line["state"]}">{line["state"]}</td>', f"<td>{line['seconds']:.1f}</td>"]
    for state in ("right", "wrong", "not attempted"):
        count = answered.count(state)
        cells.append(f'<td class="{state if count else ""}">{count if answered.states else "–"}</td>')
    return cells


def _lesson(runs: list[Run], name: str, title: str) -> str:
    parts = [f'<h2 id="{name}">{name[:2]} · {escape(title)}</h2>']
    for run in runs:
        line = run.lesson(name)
        if line and line["error"]:
            where = f"exercise {line['exercise']}" if line["exercise"] else f"cell {line['cell']}"
            at = f'<a href="{name}.ipynb">{name}.ipynb</a>' if len(runs) == 1 else escape(run.label)
            says = escape(f"{line['state']} in {where}: {line['error']}")
            parts.append(f'<p class="{line["state"]}">{says} ({at})</p>')
    series = [tables(run.figures.get(name, [])) for run in runs]
    for index in range(max(map(len, series), default=0)):
        parts.append(_evidence([(run, found[index]) for run, found in zip(runs, series, strict=True)
                                if index < len(found)]))
    if not any(series):
        parts.append('<p class="soft">No figures were recorded.</p>')
    guesses = [(run, guess) for run in runs if name[:2] in run.answers for guess in run.answers[name[:2]].guesses]
    if guesses:
        parts.append(_guesses(guesses))
    return "\n".join(parts)


def tables(figures: list[dict]) -> list[list[Readings]]:
    """A lesson's figures as the comparisons they were shown in."""
    found: dict[str, dict] = {}
    for line in figures:
        figure = Figure(line["name"], line["value"], line["unit"], line["kind"], line["device"], line["source"])
        found.setdefault(line["table"], {}).setdefault((line["kind"], line["device"]), []).append(figure)
    order = (GUESS, *KINDS)
    return [[Readings(kind, tuple(table[kind, device]), device)
             for kind, device in sorted(table, key=lambda column: order.index(column[0]))] for table in found.values()]


def _evidence(columns: list[tuple[Run, list[Readings]]]) -> str:
    """One comparison: a column a kind of evidence, and with several runs the runs' columns side by side."""
    flat = tuple(reading for _, readings in columns for reading in readings)
    rows = Comparison(flat).rows()
    body = [f"<td>{escape(name)}</td>" for name, _, _ in rows]
    start = 0
    for _, readings in columns:
        end = start + len(readings)
        blocks = _block(readings, [values[start:end] for _, _, values in rows], edge=start > 0)
        body = [row + block for row, block in zip(body, blocks, strict=True)]
        start = end
    head = ["<th>quantity</th>" + "".join(
        f'<th>{escape(reading.kind)}<span class="device">{escape(reading.device)}</span></th>' for reading in flat)
        + '<th class="text">unit</th>']
    if len(columns) > 1:
        head.insert(0, "<th></th>" + _spans((run.label, len(readings)) for run, readings in columns) + "<th></th>")
    return _table(head, [f'{row}<td class="text">{escape(unit)}</td>'
                         for row, (_, unit, _) in zip(body, rows, strict=True)])


def _block(readings: list[Readings], rows: list[list[float | None]], edge: bool) -> list[str]:
    """One run's cells, row by row: each value with its distance from the run's first figure that is not a guess."""
    offs = [[_off(value, _base(readings, values)) for value in values] for values in rows]
    noted = [any(column) for column in zip(*offs, strict=True)]
    blocks = []
    for values, distances in zip(rows, offs, strict=True):
        cells = [f"<td>{'–' if value is None else number(value)}{f'<i>{off}</i>' if room else ''}</td>"
                 for value, off, room in zip(values, distances, noted, strict=True)]
        blocks.append("".join(cells).replace("<td>", '<td class="edge">', 1 if edge else 0))
    return blocks


def _base(readings: list[Readings], values: list[float | None]) -> float | None:
    """The first figure of a row that is not a guess: what the others are held against."""
    return next((value for reading, value in zip(readings, values, strict=True)
                 if reading.kind != GUESS and value is not None), None)


def _off(value: float | None, base: float | None) -> str:
    if value is None or not base or value == base:
        return ""
    return f"{value / base - 1:+.1%}".replace("-", "−")


def _spans(labels) -> str:
    return "".join(f'<th class="span" colspan="{width}">{escape(label)}</th>' for label, width in labels)


def _guesses(guesses) -> str:
    rows = [f'<td>{escape(guess.id)}</td><td class="text">{escape(run.label)}</td>'
            f'<td class="text">{escape(guess.quantity)}</td><td>{number(guess.value)}</td>'
            f'<td>{"–" if guess.seen is None else number(guess.seen)}</td><td class="text">{escape(guess.unit)}</td>'
            f"<td>{f'{guess.off:+.1%}'.replace('-', '−')}</td>" for run, guess in guesses]
    return _table(['<th>guess</th><th class="text">run</th><th class="text">quantity</th><th>predicted</th>'
                   '<th>seen</th><th class="text">unit</th><th>off</th>'], rows)


def _table(head: list[str], rows: list[str]) -> str:
    def lines(cells):
        return "".join(f"<tr>{row}</tr>\n" for row in cells)
    return f'<div class="wide"><table><thead>\n{lines(head)}</thead><tbody>\n{lines(rows)}</tbody></table></div>'
