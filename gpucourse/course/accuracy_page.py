"""docs/accuracy.md as a page: rows of predicted and published figures, their summary, and the tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

HEAD = """# How far off the predictions are

Every row of `data/published` that a predictor covers: what it says, what was published, and the difference. The rows
that it cannot be held to are listed with the reason. Written by `python -m gpucourse.course.accuracy`; a test holds it
in step with the predictors.

No coefficient was fitted to a memory figure. The share of a card's best product that whole steps reach (0.45 to 0.9)
was read off most runs of throughput.csv: of their tokens/s this page shows how well an interval describes them. Those
on FP8, those on 128 A100s and those of memory.csv were not among them. Where a source names no network, 200, 400 and
800 Gb/s a GPU are taken for A100, H100 and GB300.
"""


@dataclass(frozen=True)
class Row:
    """One published figure beside its prediction: low and high, equal where the prediction is one number."""

    what: str
    low: float
    high: float
    published: float

    @property
    def inside(self) -> bool:
        return self.low <= self.published <= self.high

    @property
    def off(self) -> float:
        """The published figure against the nearest predicted one, as a fraction; 0 within the interval."""
        return self.published / min(max(self.published, self.low), self.high) - 1


@dataclass(frozen=True)
class Section:
    """One quantity. unpinned: (row, reason) of those that the predictor cannot be held to."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    unpinned: tuple[tuple[str, str], ...] = ()

    @property
    def interval(self) -> bool:
        return any(row.low != row.high for row in self.rows)

    def summary(self) -> list[str]:
        offs = [abs(row.off) for row in self.rows]
        count = str(len(self.rows))
        if not self.rows:
            return [self.title, count, "", "", "", str(len(self.unpinned))]
        spans = [row for row in self.rows if row.low != row.high]
        inside = (f"{sum(row.inside for row in spans)} of {len(spans)}, high ÷ low at most "
                  f"{max(row.high / row.low for row in spans):.2f}" if spans else "a point")
        return [self.title, count, inside,
                f"{100 * median(offs):.2g} %", f"{100 * max(offs):.2g} %", str(len(self.unpinned))]


def document(sections: Iterable[Section]) -> str:
    """The whole page as Markdown."""
    sections = list(sections)
    summary = [["quantity", "rows", "inside the interval", "median off", "worst off", "not pinned down"],
               *(section.summary() for section in sections)]
    return "\n".join([HEAD, *_table(summary), "", *(line for section in sections for line in _section(section))])


def _section(section: Section) -> Iterable[str]:
    yield f"## {section.title}"
    yield ""
    if section.rows:
        span = ["low", "high"] if section.interval else ["predicted"]
        body = [[row.what, *map(figure, (row.low, row.high)[:len(span)]), figure(row.published),
                 "inside" if section.interval and row.inside else f"{100 * row.off:+.2g} %"] for row in section.rows]
        head = ["", *(f"{name}, {section.unit}" for name in span), "published", "published is off by"]
        yield from _table([head, *body])
        yield ""
    if section.unpinned:
        yield "Not pinned down:"
        yield ""
        yield from _table([["", "reason"], *map(list, section.unpinned)])
        yield ""


def figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
