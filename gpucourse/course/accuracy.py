"""docs/accuracy.md: what this course predicts of the runs in data/published, and how far off it is, row by row.

    python -m gpucourse.course.accuracy      writes the file again
"""

from collections.abc import Callable

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.gpus import gpu, gpus
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.links import link
from gpucourse.catalog.models import shape
from gpucourse.catalog.published import published
from gpucourse.catalog.units import GiB
from gpucourse.course.accuracy_page import Row, Section, document, figure
from gpucourse.errors import BadInput
from gpucourse.predict import link as links
from gpucourse.predict.ledger import CONTEXT_GIB
from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.predict.plan import achievable, step
from gpucourse.predict.utilization import mfu
from gpucourse.settings import ROOT

NETWORKS = {"a100-80": "ib-200", "h100-sxm": "ib-400", "h200": "ib-400", "gb300": "ib-800"}  # where none is named
PAGE = ROOT / "docs" / "accuracy.md"
def quantities() -> list[Section]:
    """Every quantity of the page, in its order."""
    return [
        reserved(), active(), at_rest(), step_rate(),
        utilization("mfu_percent", "MFU from published tokens/s", "%"),
        utilization("tflops_per_gpu", "TFLOP/s a GPU from published tokens/s", "TFLOP/s"),
        collectives(),
    ]


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
    if "with the loss" in technique:
        return "the loss is compiled, and what it then keeps is not predicted"
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


def at_rest() -> Section:
    """What is held between steps: sharded states, a CUDA context, loaded weights."""
    rows, unpinned = [], []
    for row in published("allocators"):
        what = f"{row['what']}, {row['quantity']}"
        try:
            low, high = held(row["what"], row["quantity"])
        except BadInput as error:
            unpinned.append((what, str(error)))
        else:
            rows.append(Row(what, low / GiB, high / GiB, float(row["gib"])))
    return Section("Memory at rest", "GiB", tuple(rows), tuple(unpinned))


def held(what: str, quantity: str) -> tuple[float, float]:
    """Bytes, low and high, of a row of allocators.csv; BadInput with the reason where it cannot be predicted."""
    context, weights = tuple(gib * GiB for gib in CONTEXT_GIB), 4 * parameters(shape("bert-large")).total
    known = {"V100 with nothing but a CUDA context": context,
             "V100 with BERT-large loaded in fp32": tuple(size + weights for size in context)}
    if what in known:
        return known[what]
    if quantity != "allocated":
        raise BadInput("what BERT's layers keep is not predicted" if "BERT" in what else
                       "the sizes of DeepSpeed's buckets and prefetched weights are not given")
    shard = "zero2" if "ZeRO-2" in what else "zero3"
    job = Job(1, 1024, "bf16-master", layout=Layout(dp=8, shard=shard))
    return (sum(memory(shape("llama-2-13b"), job).states().values()),) * 2


def step_rate() -> Section:
    """Tokens/s of the step's interval, with traffic and bubble; of REACHED, the runs of B03 and memory.csv are free."""
    rows, unpinned = [], []
    for row in (*published("throughput"), *published("memory")):
        what, reason = _run(row), unknown_speed(row)
        if reason:
            unpinned.append((what, reason))
            continue
        low, high = rate(row)
        seen = float(row["tokens_per_second_per_gpu"])
        if row["case"] == "B03":
            unpinned.append((what, f"what is recomputed is not given; with nothing, {figure(low)} to {figure(high)} "
                                   f"predicted and {figure(seen)} published"))
        else:
            rows.append(Row(what, low, high, seen))
    return Section("Tokens/s a GPU", "tokens/s", tuple(rows), tuple(unpinned))


def rate(row: dict[str, str]) -> tuple[float, float]:
    """Tokens/s a GPU of a published run, low and high, over the network that its kind of card usually has."""
    number, tensor, pipeline, context = (int(row[name] or 1) for name in ("gpus", "tensor", "pipeline", "context"))
    replicas = number // (tensor * pipeline)
    shard = _shard(row["shard"]) if replicas > 1 else "none"
    layout = Layout(dp=replicas // context, shard=shard, tp=tensor, pp=pipeline, cp=context,
                    sequence_parallel=tensor > 1, vocab_parallel_loss=tensor > 1)
    precision = "bf16-autocast" if row["precision"] == "bf16" else row["precision"]
    job = Job(int(row["micro_batch"] or 1), int(row["seq"]), precision, recompute=row["recompute"] or "none",
              accumulate=int(row.get("accumulate") or 1), layout=layout)
    there = cluster(row["gpu"], number, network=row.get("network") or NETWORKS[row["gpu"]])
    model = shape(row["model"])
    *_, time = step(model, job, there, achievable(model, job, there.gpu))
    fast, slow = time.seconds
    return tuple(time.tokens * layout.dp / number / seconds for seconds in (slow, fast))


def _shard(given: str) -> str:
    """memory.csv gives the number of ranks that share the state, all of them by FSDP."""
    return "zero3" if given.isdecimal() else given


def unknown_speed(row: dict[str, str]) -> str:
    """Why a published rate cannot be predicted, or nothing."""
    if row["gpu"] not in gpus():
        return f"an {row['gpu']}, of which no peak is published"
    if row["shard"] == "hybrid":
        return "sharded within a node and copied between nodes, which is no layout here"
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


if __name__ == "__main__":
    PAGE.write_text(document(quantities()))
