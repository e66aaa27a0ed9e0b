"""gpucourse search: from GPUs and a batch to the layouts that hold it, best first."""

import json

import click

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.jobs import OPTIMIZERS, PRECISIONS, Job
from gpucourse.catalog.models import shape
from gpucourse.catalog.units import GiB, seconds_text
from gpucourse.course.predicting import as_object, names
from gpucourse.evidence import columns_text
from gpucourse.predict.levers import levers
from gpucourse.predict.plan import Plan
from gpucourse.predict.search import Found, search, why

LEVERS = 4  # shown of the best plan


@click.command()
@click.argument("model")
@click.option("--gpu", "card", required=True, help="A name of data/gpus.toml, such as h100-sxm.")
@click.option("--gpus", "number", type=int, required=True)
@click.option("--gpus-per-node", type=int, default=0, help="What the GPU's own link joins by default.")
@click.option("--network", default="", help="Between nodes: a name of data/links.toml, or GB/s:µs.")
@click.option("--global-batch", type=int, required=True, help="Sequences a step, of all GPUs together.")
@click.option("--seq", type=int, required=True, help="Tokens a sequence.")
@click.option("--precision", default="bf16-autocast", show_default=True, help=names(PRECISIONS))
@click.option("--optimizer", default="adamw", show_default=True, help=names(OPTIMIZERS))
@click.option("--top", type=int, default=10, show_default=True, help="Plans to show.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")
def command(model, card, number, gpus_per_node, network, global_batch, seq, precision, optimizer, top, as_json) -> None:
    """Plans that fit, by predicted tokens/s a GPU. MODEL is a name, a TOML file of that form or a config.json."""
    what, there = shape(model), cluster(card, number, gpus_per_node, network)
    found = search(what, there, global_batch, Job(seq=seq, precision=precision, optimizer=optimizer), top)
    if as_json:
        click.echo(json.dumps(found_object(found)))
        return
    click.echo(columns_text(table(found), left=3))
    for line in closing(found):
        click.echo(line)


def found_object(found: Found) -> dict:
    """The keys that other programs may rely on. A plan's levers are its own; `why` is against the next plan."""
    plans = [layout_object(plan) | as_object(plan) | {"why": reason, "levers": [str(lever) for lever in levers(plan)]}
             for plan, reason in zip(found.plans, reasons(found), strict=True)]
    return {"plans": plans, "layouts": found.layouts, "verdicts": found.verdicts,
            "skipped": sum(found.skipped.values())}


def layout_object(plan: Plan) -> dict:
    job, layout = plan.job, plan.job.layout
    return {name: getattr(layout, name) for name in layout.__dataclass_fields__} | {
        "micro_batch": job.micro_batch, "accumulate": job.accumulate, "recompute": job.recompute, "seq": job.seq}


def reasons(found: Found) -> list[str]:
    """Of each plan, why it beats the next."""
    return [*(why(better, other) for better, other in zip(found.plans, found.plans[1:], strict=False)), ""]


def table(found: Found) -> list[list[str]]:
    head = ["", "layout", "recompute", "micro-batch × passes", "device, GiB", "step", "tokens/s a GPU", "MFU"]
    rows = []
    for number, plan in enumerate(found.plans, 1):
        job, (low, high) = plan.job, plan.ledger.device
        rows.append([str(number), str(job.layout), job.recompute, f"{job.micro_batch} × {job.accumulate}",
                     f"{low / GiB:.1f} … {high / GiB:.1f}", " … ".join(map(seconds_text, plan.time.seconds)),
                     " … ".join(f"{rate:,.0f}" for rate in plan.tokens_per_second_per_gpu),
                     " … ".join(f"{100 * mfu:.0f}" for mfu in plan.mfu) + " %"])
    return [head, *rows]


def closing(found: Found) -> list[str]:
    """Why each plan beats the next, how many layouts there were, and what could be changed in the best plan."""
    best = found.plans[0]
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in found.verdicts.items())
    beats = [f"{number} beats {number + 1}: {reason}" for number, reason in enumerate(reasons(found), 1) if reason]
    seen = sum(found.verdicts.values())
    lines = ["", *beats, "", f"{best.cluster}, {best.cluster.gpu.capacity_text} each: {found.layouts:,} layouts ranked "
                             f"by speed; of the {seen:,} looked at, do they fit? {counts}"]
    if best.fits == "no":
        lines.append(f"No layout fits. The one shown needs least: at least {best.ledger.device[0] / GiB:.1f} GiB.")
    if best.fits == "uncertain":
        lines.append("No layout fits for certain: the plans above may, as their interval holds the capacity.")
    if found.bolder:
        lines.append(f"Faster if it fits: {found.bolder.job.layout}, {found.bolder.job}. "
                     + why(found.bolder, best))
    if found.skipped:
        lines.append(f"{sum(found.skipped.values()):,} left out, for instance: {next(iter(found.skipped))}")
    return [*lines, *(f"From plan 1: {lever}" for lever in levers(best)[:LEVERS])]
