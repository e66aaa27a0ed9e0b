"""gpucourse mfu: from tokens a second to the share of the GPU's peak, with the arithmetic."""

import json

import click

from gpucourse.catalog.gpus import Gpu, gpu
from gpucourse.catalog.models import shape
from gpucourse.catalog.shapes import Shape
from gpucourse.evidence import columns_text
from gpucourse.predict.compute import CONVENTIONS, flops_per_token
from gpucourse.predict.utilization import Utilization, mfu


@click.command()
@click.argument("model")
@click.option("--gpu", "card", required=True, help="A name of data/gpus.toml, such as h100-sxm.")
@click.option("--tokens-per-second", type=float, required=True, help="Of all GPUs together.")
@click.option("--seq", type=int, required=True, help="Tokens a sequence.")
@click.option("--gpus", "number", type=int, default=1, show_default=True)
@click.option("--precision", default="bf16", show_default=True, help="Of the matrix products.")
@click.option("--convention", default="palm", show_default=True, help="What counts: " + ", ".join(CONVENTIONS) + ".")
@click.option("--recompute", default="none", show_default=True, help="none, op, op-2, attention, layer-K or full.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")
def command(model, card, tokens_per_second, seq, number, precision, convention, recompute, as_json) -> None:
    """MFU and HFU of a training run. MODEL is a name, a TOML file of the same form or a config.json."""
    what, on = shape(model), gpu(card)
    used = mfu(what, on, tokens_per_second, seq, number, precision, convention, recompute)
    if as_json:
        click.echo(json.dumps(as_object(used)))
        return
    click.echo(columns_text(table(what, on, tokens_per_second, seq, number, used)))
    for warning in used.warnings:
        click.echo(f"warning: {warning}")


def as_object(used: Utilization) -> dict:
    """The keys that other programs may rely on."""
    return {"mfu": used.mfu, "hfu": used.hfu, "convention": used.convention, "precision": used.precision,
            "tflops_per_gpu": used.tflops_per_gpu, "flops_per_token": used.flops_per_token,
            "peak_tflops": used.peak_tflops, "warnings": list(used.warnings)}


def table(what: Shape, on: Gpu, rate: float, seq: int, number: int, used: Utilization) -> list[list[str]]:
    """Each step from the shape to the percentage, to be followed with a pencil."""
    flops = flops_per_token(what, seq, used.convention)
    factor = 6 if used.convention == "causal" else 12
    width = flops.attention / (factor * what.layers * seq)
    return [
        [f"{what.name} · {used.convention}", "", "computed", ""],
        ["parameters", f"6 × {flops.linear / 6:,.0f}", f"{flops.linear / 1e9:.4g}", "GFLOP a token"],
        ["attention", f"{factor} × {what.layers} × {width:,.0f} × {seq:,}", f"{flops.attention / 1e9:.4g}",
         "GFLOP a token"],
        ["achieved", f"{rate:,.6g} tokens/s ÷ {number} × {used.flops_per_token / 1e9:.4g}",
         f"{used.tflops_per_gpu:.4g}", "TFLOP/s a GPU"],
        ["peak", f"{on.name}, dense {used.precision}", f"{used.peak_tflops:.4g}", "TFLOP/s"],
        ["MFU", "achieved ÷ peak", f"{100 * used.mfu:.1f}", "%"],
        ["HFU", "with what is recomputed", f"{100 * used.hfu:.1f}", "%"],
    ]
