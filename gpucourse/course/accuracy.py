"""docs/accuracy.md: what this course predicts of the runs in data/published, and how far off it is, row by row.

    python -m gpucourse.course.accuracy      writes the file again
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.gpus import gpu, gpus
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.links import link
from gpucourse.catalog.models import shape
from gpucourse.catalog.published import published
from gpucourse.catalog.units import GiB
from gpucourse.errors import BadInput
from gpucourse.predict import link as links
from gpucourse.predict.memory import memory
from gpucourse.predict.plan import step
from gpucourse.predict.steptime import ceiling
from gpucourse.predict.utilization import mfu
from gpucourse.settings import ROOT

NETWORKS = {"a100-80": "ib-200", "h100-sxm": "ib-400", "gb300": "ib-800"}  # a port a GPU; no source names its own
PAGE = ROOT / "docs" / "accuracy.md"
HEAD = """# How far off the predictions are

Every row of `data/published` that a predictor covers: what it says, what was published, and the difference. The rows
that it cannot be held to are listed with the reason. Written by `python -m gpucourse.course.accuracy`; a test holds it
in step with the predictors.

No coefficient was fitted to a memory figure. The share of a card's best product that whole steps reach (0.45 to 0.9)
was read off most runs of throughput.csv: of their tokens/s this page shows how well an interval describes them. Those
on FP8 and those of memory.csv were not among them. No source names its network: 200, 400 and 800 Gb/s a GPU are taken
for A100, H100 and GB300.
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
        inside = sum(row.inside for row in self.rows) / len(self.rows)
        width = max(row.high / row.low for row in self.rows)
        return [self.title, count, f"{inside:.0%}, high ÷ low {width:.2f}" if self.interval else "a point",
                f"{100 * median(offs):.2g} %", f"{100 * max(offs):.2g} %", str(len(self.unpinned))]


def document() -> str:
    """The whole page as Markdown."""
    sections = [reserved(), active(), step_rate(), utilization("mfu_percent", "MFU from published tokens/s", "%"),
                utilization("tflops_per_gpu", "TFLOP/s a GPU from published tokens/s", "TFLOP/s"), collectives()]
    summary = [["quantity", "rows", "inside the interval", "median off", "worst off", "not pinned down"],
               *(section.summary() for section in sections)]
    return "\n".join([HEAD, *_table(summary), "", *(line for section in sections for line in _section(section))])


def reserved() -> Section:
    return _memory("reserved", "Reserved memory", lambda ledger: ledger.reserved)


def active() -> Section:
    return _memory("active", "Allocated memory", lambda ledger: (ledger.peak, ledger.peak))


def _memory(quantity: str, title: str, read: Callable) -> Section:
    rows, unpinned = [], []
    for row in published("memory"):
        if row["quantity"] != quantity:
            continue
        what = f"{row['model']}, {row['gpus']} GPUs, seq {int(row['seq']):,}, {row['technique']}"
        reason = unstated(row)
        if not reason:
            try:
                low, high = read(memory(*question(row)))
            except BadInput as error:
                reason = str(error)
            else:
                rows.append(Row(what, low / GiB, high / GiB, float(row["gib"])))
                continue
        unpinned.append((what, reason))
    return Section(title, "GiB", tuple(rows), tuple(unpinned))


def unstated(row: dict[str, str]) -> str:
    """Why a published memory figure cannot be predicted, or nothing where all that it depends on is known."""
    technique = row["technique"]
    if int(row["pipeline"]) > 1:
        return "the number of micro-batches is not given"
    if technique == "baseline":
        return "the lengths of the dataset's sequences are not given"
    if row["quantity"] == "active" and technique not in ("baseline", "+ packed dataset"):
        return "measured with what torch.compile fused, which is not predicted"
    return ""


def question(row: dict[str, str]):
    """The shape and the job of a published memory figure: FSDP, with sequence and loss divided under TP."""
    tensor, context = int(row["tensor"]), int(row["context"])
    replicas = int(row["shard"]) * context
    layout = Layout(dp=int(row["shard"]), shard="zero3" if replicas > 1 else "none", tp=tensor, cp=context,
                    sequence_parallel=tensor > 1, vocab_parallel_loss=tensor > 1)
    model, seq = shape(row["model"]), int(row["seq"])
    job = Job(int(row["micro_batch"]), seq, row["precision"], recompute=row["recompute"] or "none", layout=layout)
    return model.but(context=max(model.context, seq)), job


def step_rate() -> Section:
    """Tokens/s of the step's interval, with traffic and bubble; of REACHED, the runs of B03 and memory.csv are free."""
    rows, unpinned = [], []
    for row in (*published("throughput"), *published("memory")):
        what, reason = _run(row), unknown_speed(row)
        if reason:
            unpinned.append((what, reason))
            continue
        low, high = rate(row)
        figure = float(row["tokens_per_second_per_gpu"])
        if row["case"] == "B03":
            unpinned.append((what, f"what is recomputed is not given; with nothing, {_number(low)} to {_number(high)} "
                                   f"predicted and {_number(figure)} published"))
        else:
            rows.append(Row(what, low, high, figure))
    return Section("Tokens/s a GPU", "tokens/s", tuple(rows), tuple(unpinned))


def rate(row: dict[str, str]) -> tuple[float, float]:
    """Tokens/s a GPU of a published run, low and high, over the network that its kind of card usually has."""
    number, tensor, pipeline, context = (int(row[name] or 1) for name in ("gpus", "tensor", "pipeline", "context"))
    replicas = number // (tensor * pipeline)
    layout = Layout(dp=replicas // context, shard=row["shard"] if replicas > 1 else "none", tp=tensor, pp=pipeline,
                    cp=context, sequence_parallel=tensor > 1, vocab_parallel_loss=tensor > 1)
    precision = "bf16-autocast" if row["precision"] == "bf16" else row["precision"]
    job = Job(int(row["micro_batch"] or 1), int(row["seq"]), precision, recompute=row["recompute"] or "none",
              accumulate=int(row.get("accumulate") or 1), layout=layout)
    there = cluster(row["gpu"], number, network=NETWORKS[row["gpu"]])
    *_, time = step(shape(row["model"]), job, there, ceiling(there.gpu, precision))
    fast, slow = time.seconds
    return tuple(time.tokens * layout.dp / number / seconds for seconds in (slow, fast))


def unknown_speed(row: dict[str, str]) -> str:
    """Why a published rate cannot be predicted, or nothing."""
    if row["gpu"] not in gpus():
        return f"an {row['gpu']}, of which no peak is published"
    if row.get("technique") in ("baseline", "LoRA", "QLoRA"):
        return "which tokens and which weights count is not given"
    return ""


def utilization(column: str, title: str, unit: str) -> Section:
    """What the published tokens/s amount to, by the convention that the source uses."""
    rows = []
    for row in published("throughput"):
        if row[column]:
            used = mfu(shape(row["model"]), gpu(row["gpu"]), float(row["tokens_per_second_per_gpu"]), int(row["seq"]),
                       precision=row["precision"], convention=row["convention"])
            value = 100 * used.mfu if column == "mfu_percent" else used.tflops_per_gpu
            rows.append(Row(_run(row), value, value, float(row[column])))
    return Section(title, unit, tuple(rows))


def collectives() -> Section:
    """An all-reduce on 8 A100s by the α and β of their link as the catalogue has it, which nobody fitted."""
    wire = link(gpu("a100-40").link)
    rows = []
    for row in published("allreduce_8xa100"):
        size = int(row["bytes"])
        seconds = links.seconds("all-reduce", size, 8, wire)
        rows.append(Row(f"{size:,} bytes", 1e6 * seconds, 1e6 * seconds, float(row["microseconds"])))
    return Section("All-reduce of 8 GPUs", "µs", tuple(rows))


def _run(row: dict[str, str]) -> str:
    number = f"{row['gpus']} × " if row["gpus"] else ""
    technique = f", {row['technique']}" if row.get("technique") else ""
    return (f"{row['model']} on {number}{row['gpu']}, {row['precision']}, recompute {row['recompute'] or 'not given'}"
            f"{technique}")


def _section(section: Section) -> Iterable[str]:
    yield f"## {section.title}"
    yield ""
    if section.rows:
        span = ["low", "high"] if section.interval else ["predicted"]
        body = [[row.what, *map(_number, (row.low, row.high)[:len(span)]), _number(row.published),
                 "inside" if section.interval and row.inside else f"{100 * row.off:+.2g} %"] for row in section.rows]
        head = ["", *(f"{name}, {section.unit}" for name in span), "published", "published is off by"]
        yield from _table([head, *body])
        yield ""
    if section.unpinned:
        yield "Not pinned down:"
        yield ""
        yield from _table([["", "reason"], *map(list, section.unpinned)])
        yield ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


if __name__ == "__main__":
    PAGE.write_text(document())
