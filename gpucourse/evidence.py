"""Figures that say where they come from, and the table that sets a prediction beside a measurement."""

import html
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpucourse.errors import BadInput, unknown
from gpucourse.settings import settings

KINDS = ("computed", "dry run", "measured", "simulated", "recorded", "published")
GUESS = "your guess"

# The instants of a training step at which memory can peak, in the order in which they come.
INSTANTS = ("forward", "loss", "last block", "first block", "embedding", "step")
# On one device memory changes by the same amount from block to block, so what lies between the last and the first is
# never the peak. Where blocks differ, or weights come and go, the middle is an instant of its own.
MIDDLE = "middle blocks"
# Where a pipeline's schedule has a backward in halves, the one for the weights is an instant of its own too.
WEIGHTS = "weights' half"
ALL_INSTANTS = (*INSTANTS[:3], MIDDLE, *INSTANTS[3:5], WEIGHTS, "step")
STATES = ("weights", "gradients", "optimizer")
REST = "activations and temporaries"
PEAK = "peak allocated"
SAME_SIZE = 0.1  # a residual within a tenth of a line's size is said to be as much as that line


@dataclass(frozen=True)
class Figure:
    """One number: its unit, its kind of evidence, the device where there is one, and the formula, paper or file."""

    name: str
    value: float
    unit: str
    kind: str
    device: str = ""
    source: str = ""

    def __post_init__(self):
        if self.kind not in (*KINDS, GUESS):
            raise unknown(f"figure {self.name!r}: kind of evidence", self.kind, KINDS)
        if self.kind in ("measured", "recorded") and not self.device:
            raise BadInput(f"figure {self.name!r} is {self.kind}: it must name its device")


@dataclass(frozen=True)
class Readings:
    """Figures of one kind from one place: a column of a comparison.

    lines: {figure's name: {line: value}} where a figure is a sum of named lines. peak_at: the instant of the peak.
    """

    kind: str
    figures: tuple[Figure, ...]
    device: str = ""
    lines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    peak_at: str = ""

    def readings(self) -> "Readings":
        return self


def column(kind: str, values: Mapping[str, float], unit: str, device: str = "", source: str = "") -> Readings:
    """Figures of one kind in one unit, from {name: value}."""
    return Readings(kind, tuple(Figure(name, v, unit, kind, device, source) for name, v in values.items()), device)


@dataclass(frozen=True)
class Memory:
    """Bytes by category at the highest moment of each instant of one training step.

    at: {instant: {category: bytes}}. Instants that this source cannot tell apart are absent.
    also: other figures in bytes, such as a process's high-water mark. lines: {category: {line: bytes at the peak}}
    where a category is a sum of named lines.
    """

    at: Mapping[str, Mapping[str, int]]
    kind: str
    device: str = ""
    source: str = ""
    also: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def total(self, instant: str) -> int:
        return sum(self.at[instant].values())

    @property
    def peak_at(self) -> str:
        return max(self.at, key=self.total)

    @property
    def peak(self) -> int:
        return self.total(self.peak_at)

    def readings(self, unit: str = "GiB") -> Readings:
        """The peak, each instant, and the categories at the peak."""
        scale = {"GiB": 1024**3, "MiB": 1024**2, "bytes": 1}[unit]
        top = self.at[self.peak_at]
        values = {PEAK: self.peak}
        values |= {f"at {instant}": self.total(instant) for instant in ALL_INSTANTS if instant in self.at}
        if set(top) >= set(STATES):
            values |= {name: top[name] for name in STATES}
            values[REST] = self.peak - sum(top[name] for name in STATES)
        values |= self.also
        values = {name: size / scale for name, size in values.items()}
        lines: dict[str, dict[str, float]] = {}
        for category, parts in self.lines.items():
            lines.setdefault(category if category in STATES else REST, {}).update(
                {name: size / scale for name, size in parts.items()})
        return replace(column(self.kind, values, unit, self.device, self.source), lines=lines, peak_at=self.peak_at)


@dataclass(frozen=True)
class Comparison:
    """The learner's guess, what was computed and what was seen, side by side."""

    columns: tuple[Readings, ...]

    def rows(self) -> list[tuple[str, str, list[float | None]]]:
        """(name, unit, value in each column or None), in the order in which names first appear."""
        names = {(f.name, f.unit): None for column in self.columns for f in column.figures}
        tables = [{(f.name, f.unit): f.value for f in column.figures} for column in self.columns]
        return [(name, unit, [table.get((name, unit)) for table in tables]) for name, unit in names]

    def off(self, values: list[float | None]) -> float | None:
        """How far the last column's value is from the first prediction that is not the guess, as a fraction."""
        known = self.known(values)
        return known[-1] / known[0] - 1 if len(known) > 1 and known[0] else None

    def known(self, values: list[float | None]) -> list[float]:
        """A row's values, without gaps and without the guess."""
        return [v for column, v in zip(self.columns, values, strict=False) if v is not None and column.kind != GUESS]

    def explained(self) -> str:
        """The part of the peak that differs most between the first prediction and the last column, and its line.

        Of a ledger's lines the one of about that size, as a line that one side lacks would be; else the largest.
        """
        rows = {name: values for name, _, values in self.rows()}
        peaks = [column.peak_at for column in self.columns if column.peak_at]
        first, last = (peaks[0], peaks[-1]) if peaks else ("", "")
        if first != last and all(len(self.known(rows[f"at {at}"])) > 1 for at in (first, last)):
            return f"the peak is at {last}, not at {first}"
        apart = {name: self.known(rows[name]) for name in (*STATES, REST) if name in rows}
        apart = {name: known[-1] - known[0] for name, known in apart.items() if len(known) > 1}
        name = max(apart, key=lambda part: abs(apart[part]), default="")
        peak = self.off(rows.get(PEAK, []))
        if not name or not peak or percent(peak) == "0 %":
            return ""
        lines = next((column.lines[name] for column in self.columns if column.lines.get(name)), {})
        same = [line for line, size in lines.items() if abs(abs(apart[name]) - size) <= SAME_SIZE * size]
        where = f", as much as {same[0]}" if same else f"; largest line: {max(lines, key=lines.get)}" if lines else ""
        return f"{name}: {number(apart[name])}{where}"

    def table(self) -> list[list[str]]:
        head = ["", *(column.kind for column in self.columns), "unit", "off", "explained by"]
        body = []
        for name, unit, values in self.rows():
            off = self.off(values)
            body.append([name, *("–" if v is None else number(v) for v in values), unit,
                         "" if off is None else percent(off), self.explained() if name == PEAK else ""])
        foot = ["", *(column.device for column in self.columns), "", "", ""]
        table = [head, *body] + ([foot] if any(foot) else [])
        return table if any(row[-1] for row in body) else [row[:-1] for row in table]

    def __str__(self) -> str:
        return columns_text(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.table())


def compare(*columns) -> Comparison:
    """Set figures side by side: a guess, a ledger, a dry run, a measurement, or any Figure or Readings.

    The first column is shown first: pass the learner's guess before what it is held against. A blank guess is shown
    as a dash. `off` is the last column against the first that is not the guess.
    """
    read = []
    for column in columns:
        if isinstance(column, Figure):
            column = Readings(column.kind, (column,), column.device)
        if not hasattr(column, "readings"):
            raise BadInput(f"compare was given {type(column).__name__}; it takes guesses, ledgers, dry runs, figures")
        read.append(column.readings())
    guesses = tuple(figure for column in read if column.kind == GUESS for figure in column.figures)
    if guesses or any(column.kind == GUESS for column in read):  # several guesses are one column, the first
        read = [Readings(GUESS, guesses), *(column for column in read if column.kind != GUESS)]
    record(*(figure for column in read for figure in column.figures))
    comparison = Comparison(tuple(read))
    for column in columns:
        if hasattr(column, "seen"):  # a guess keeps how far off it was
            column.seen(comparison)
    return comparison


def record(*figures: Figure) -> None:
    """Append figures to the batch run's evidence, one JSON line each; without a run, do nothing.

    What is recorded in one call belongs together: its lines share a `table`.
    """
    now = settings()
    if now.run is None or not now.lesson:
        return
    table = secrets.token_hex(4)
    lines = [json.dumps({"lesson": now.lesson, "table": table, "name": f.name, "value": f.value, "unit": f.unit,
                         "kind": f.kind, "device": f.device, "source": f.source}, allow_nan=False)
             for f in figures if math.isfinite(f.value)]
    descriptor = os.open(now.run / f"evidence.{now.lesson}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, "".join(line + "\n" for line in lines).encode())
    finally:
        os.close(descriptor)


def number(value: float) -> str:
    """Whole numbers with separators; others with four significant figures."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def percent(fraction: float) -> str:
    """A signed difference: `+0.9 %`; `0 %` where nothing is left of it."""
    if abs(fraction) < 5e-6:
        return "0 %"
    return f"{100 * fraction:+,.0f} %" if abs(fraction) >= 1 else f"{100 * fraction:+.2g} %"


def columns_text(table: list[list[str]], left: int = 1) -> str:
    """A table as text: the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]

    def line(row):
        aligned = [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        return "  ".join([*aligned, *map(str.rjust, row[left:], widths[left:])]).rstrip()

    return "\n".join(map(line, table))


def table_html(table: list[list[str]], left: int = 1) -> str:
    """A table as plain HTML, which GitHub and JupyterLab both show; the first `left` columns to the left."""
    def row(cells, tag):
        sides = ["left"] * left + ["right"] * (len(cells) - left)  # GitHub reads align, JupyterLab the style
        return "<tr>" + "".join(f'<{tag} align="{side}" style="text-align: {side}">{html.escape(cell)}</{tag}>'
                                for side, cell in zip(sides, cells, strict=True)) + "</tr>"

    head, *body = table
    return f"<table><thead>{row(head, 'th')}</thead><tbody>{''.join(row(r, 'td') for r in body)}</tbody></table>"
