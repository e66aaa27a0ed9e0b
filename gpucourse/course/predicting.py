"""gpucourse predict: memory, traffic and time of a training step, with the arithmetic."""

import json

import click

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.divides import uneven
from gpucourse.catalog.jobs import GRADIENTS, OPTIMIZERS, PRECISIONS, RECOMPUTES, Job
from gpucourse.catalog.layouts import PIPELINES, REDUCES, RESHARDS, SHARDS, Layout
from gpucourse.catalog.models import shape
from gpucourse.catalog.units import GiB, bytes_text, gib, seconds_text
from gpucourse.evidence import columns_text
from gpucourse.predict.compute import flops_per_token, hardware_flops_per_token
from gpucourse.predict.layout_traffic import step_traffic
from gpucourse.predict.ledger import Ledger
from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.predict.plan import Plan, dtype, enough, plan, share
from gpucourse.predict.schedules import SCHEDULES
from gpucourse.predict.steptime import REACHED
from gpucourse.predict.traffic import Transfer


def names(allowed) -> str:
    return ", ".join(filter(None, allowed)) + "."


@click.command()
@click.argument("model")
@click.option("--gpu", "card", help="A name of data/gpus.toml; without it, memory and traffic alone.")
@click.option("--gpus", "number", type=int, help="As many as the layout has ranks by default.")
@click.option("--gpus-per-node", type=int, default=0, help="What the GPU's own link joins by default.")
@click.option("--network", default="", help="Between nodes: a name of data/links.toml, or GB/s:µs.")
@click.option("--dp", type=int, default=1, show_default=True, help="Ranks that see other sequences.")
@click.option("--shard", default="none", show_default=True, help=names(SHARDS))
@click.option("--reshard", default="always", show_default=True, help="Weights after forward: " + names(RESHARDS))
@click.option("--reduce", default="always", show_default=True,
              help="After which micro-batch; in a pipeline after the last whatever is said: " + names(REDUCES))
@click.option("--bucket-view/--no-bucket-view", default=True, show_default=True, help="DDP's gradients in its buckets.")
@click.option("--tp", type=int, default=1, show_default=True, help="Ranks that divide each layer.")
@click.option("--sequence-parallel", is_flag=True, help="They also divide norms and the residual stream.")
@click.option("--vocab-parallel-loss", is_flag=True, help="They keep the logits divided for the loss.")
@click.option("--pp", type=int, default=1, show_default=True, help="Ranks that divide the layers into stages.")
@click.option("--schedule", default="1f1b", show_default=True, help=names(PIPELINES))
@click.option("--chunks", type=int, default=0, help="Stages a pipeline rank; the schedule's least by default.")
@click.option("--cp", type=int, default=1, show_default=True, help="Ranks that divide the sequence.")
@click.option("--ep", type=int, default=1, show_default=True, help="Data-parallel ranks that divide the experts.")
@click.option("--micro-batch", type=int, default=1, show_default=True, help="Sequences a forward pass.")
@click.option("--seq", type=int, help="Tokens a sequence; the model's maximum, at most 8192, by default.")
@click.option("--accumulate", type=int, default=1, show_default=True, help="Forward passes a step.")
@click.option("--precision", default="bf16-autocast", show_default=True, help=names(PRECISIONS))
@click.option("--grad-dtype", default="", help="Of the gradients, where not the precision's own: " + names(GRADIENTS))
@click.option("--optimizer", default="adamw", show_default=True, help=names(OPTIMIZERS))
@click.option("--foreach/--no-foreach", default=True, show_default=True, help="Its step works on lists of tensors.")
@click.option("--recompute", default="none", show_default=True, help=names(RECOMPUTES))
@click.option("--offload", is_flag=True, help="Optimizer state in host memory; the host's own work is not timed.")
@click.option("--chunked-loss", type=int, default=0, help="Parts in which the loss is computed; 0 for whole.")
@click.option("--lora", type=int, default=0, help="Rank of trained adapters; 0 for none.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")
def command(model, card, number, gpus_per_node, network, seq, chunks, schedule, pp, as_json, **choices) -> None:
    """Memory, traffic and time of a training step. MODEL is a name, a TOML file of that form or a config.json."""
    what = shape(model)
    layout = Layout(pp=pp, schedule=schedule, chunks=chunks or least_chunks(pp, schedule),
                    **{name: choices.pop(name) for name in Layout.__dataclass_fields__ if name in choices})
    job = Job(seq=min(what.context, 8192) if seq is None else seq, layout=layout, **choices)
    number = layout.ranks if number is None else enough(number, layout)
    if card is None:
        ledger, transfers = memory(what, job), step_traffic(what, job)
        keys = of_memory(ledger, parameters(what).total, transfers) | no_time()
        said = [ledger, traffic_text([(t, None) for t in transfers])]
    else:
        found = plan(what, job, cluster(card, number, gpus_per_node, network))
        keys = as_object(found)
        said = [found.ledger, traffic_text(found.carried), columns_text(time_table(found), left=2)]
    warnings = uneven(what, layout)
    click.echo(json.dumps(keys | {"warnings": list(warnings)}) if as_json
               else "\n".join([*map(str, said), *(f"warning: {warning}" for warning in warnings)]))


def least_chunks(pp: int, schedule: str) -> int:
    return SCHEDULES[schedule].chunks[0] if pp > 1 and schedule in SCHEDULES else 1


def as_object(found: Plan) -> dict:
    """The keys that other programs may rely on; bytes and GiB are the fullest rank's."""
    transfers = [transfer for transfer, _ in found.carried]
    memory_keys = of_memory(found.ledger, parameters(found.shape).total, transfers)
    for row, (transfer, link) in zip(memory_keys["traffic"], found.carried, strict=True):
        row |= {"seconds": transfer.seconds(link), "link": link.name}
    return memory_keys | {
        "bubble": found.bubble, "step_seconds": list(found.time.seconds),
        "tokens_per_second_per_gpu": list(found.tokens_per_second_per_gpu), "mfu": list(found.mfu),
        "fits": found.fits, "capacity_gib": found.cluster.gpu.capacity_gib,
    }


def of_memory(ledger: Ledger, count: int, transfers: list[Transfer]) -> dict:
    lines = [{"name": line.name, "category": line.category, "bytes": line.bytes, "formula": line.formula,
              "source": line.source, "at": dict(line.at)} for line in ledger.lines]
    return {
        "parameters": count, "allocated_gib": gib(ledger.peak), "reserved_gib": list(map(gib, ledger.reserved)),
        "device_gib": list(map(gib, ledger.device)), "peak_at": ledger.peak_at, "lines": lines,
        "host_gib": gib(sum(line.bytes for line in ledger.host)),
        "states_gib": {name: gib(size) for name, size in ledger.states().items()},
        "traffic": [{"collective": t.collective, "axis": t.axis, "bytes": t.sent, "calls": t.calls, "ranks": t.ranks,
                     "behind": t.behind, "seconds": None, "link": None} for t in transfers],
    }


def no_time() -> dict:
    """The keys that need a GPU to be named."""
    return dict.fromkeys(("bubble", "step_seconds", "tokens_per_second_per_gpu", "mfu", "fits", "capacity_gib"))


def traffic_text(carried) -> str:
    """What one rank sends in a step, a collective a row; nothing on one rank."""
    rows = [[t.axis, t.collective + f" among {t.ranks}" * (t.axis != "host"), f"{t.calls:,} × {bytes_text(t.size)}",
             bytes_text(t.sent), link.name if link else "", seconds_text(t.seconds(link)) if link else "",
             t.behind or "nothing"]
            for t, link in carried]
    head = ["axis", "collective", "calls", "sent", "over", "seconds", "hidden behind"]
    return "\n" + columns_text([head, *rows], left=2) + "\n" if rows else ""


def time_table(found: Plan) -> list[list[str]]:
    """From FLOPs to tokens a second, low and high, to be followed with a pencil."""
    job, layout, time = found.job, found.job.layout, found.time
    each = hardware_flops_per_token(found.shape, job.seq, "no-embedding", job.recompute).total
    model = flops_per_token(found.shape, job.seq).total
    (device_low, device_high), (rate_low, rate_high) = found.ledger.device, found.tokens_per_second_per_gpu

    work = f"{time.tokens:,} tokens × {share(found.shape, job):.4g} of the model × {each / 1e9:.4g} GFLOP"
    speed = f"({found.flops / 1e12:.4g} TFLOP/s × {REACHED[1]:g} … {REACHED[0]:g})"
    parts = {
        "compute": (f"{work} ÷ {speed}", time.compute),
        "bubble": (f"{found.bubble:.3g} of it and compute", time.bubble),
        "waiting for traffic": ("what nothing hides … all of it", time.waiting),
        "step": ("", time.seconds),
    }
    return [
        [str(found.cluster), "computed", "low", "high"],
        *([name, formula, *map(seconds_text, span)] for name, (formula, span) in parts.items() if any(span)),
        ["tokens/s a GPU", f"{found.tokens:,} tokens ÷ {layout.ranks} ÷ step", f"{rate_low:,.0f}", f"{rate_high:,.0f}"],
        ["MFU", f"× {model / 1e9:.4g} GFLOP (palm) ÷ {found.cluster.gpu.peak(dtype(job)) / 1e12:.4g} TFLOP/s",
         *(f"{mfu:.1%}" for mfu in found.mfu)],
        ["device memory", f"of {found.cluster.gpu.capacity_text}: fits: {found.fits}",
         f"{device_low / GiB:.2f}", f"{device_high / GiB:.2f}"],
    ]
