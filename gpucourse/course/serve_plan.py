"""gpucourse serve-plan: what a server holds on each GPU, and how many requests fit."""

import json

import click

from gpucourse.catalog.gpus import Gpu, gpu
from gpucourse.catalog.models import shape
from gpucourse.catalog.units import bytes_text, gib
from gpucourse.evidence import columns_text
from gpucourse.predict.kv_cache import KV_BYTES
from gpucourse.predict.serving import WEIGHT_BITS, ServePlan, plan


@click.command()
@click.argument("model")
@click.option("--gpu", "card", required=True, help="A name of data/gpus.toml, such as l4.")
@click.option("--tp", type=int, default=1, show_default=True, help="GPUs that share each layer.")
@click.option("--context", type=int, help="Tokens a request, prompt and answer; the model's own maximum by default.")
@click.option("--concurrency", type=int, default=1, show_default=True, help="Requests at once.")
@click.option("--weights", default="bf16", show_default=True, help="Their format: " + ", ".join(WEIGHT_BITS) + ".")
@click.option("--kv-dtype", default="bf16", show_default=True, help="Of the cache: " + ", ".join(KV_BYTES) + ".")
@click.option("--utilization", type=float, default=0.9, show_default=True, help="Share of the card that is used.")
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens a block of the cache.")
@click.option("--reserve-gib", type=float, help="Activations, context and graphs, where you have measured them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")
def command(model, card, tp, context, concurrency, weights, kv_dtype, utilization, block_size, reserve_gib,
            as_json) -> None:
    """The KV cache that fits beside a model. MODEL is a name, a TOML file of the same form or a config.json."""
    what, on = shape(model), gpu(card)
    length = what.context if context is None else context
    found = plan(what, on, length, concurrency, tp, kv_dtype, weights, utilization, block_size, reserve_gib)
    click.echo(json.dumps(as_object(found)) if as_json
               else columns_text(table(what.name, on, length, concurrency, utilization, block_size, found)))


def as_object(found: ServePlan) -> dict:
    """The keys that other programs may rely on; all of one GPU."""
    return {"weights_gib": gib(found.weight_bytes), "reserve_gib": gib(found.reserve_bytes),
            "kv_bytes_per_token": found.kv_bytes_per_token, "kv_gib": gib(found.kv_bytes),
            "kv_tokens": found.kv_tokens, "kv_blocks": found.kv_blocks, "max_concurrency": found.max_concurrency,
            "fits": found.fits}


def table(name: str, on: Gpu, context: int, wanted: int, utilization: float, block_size: int,
          found: ServePlan) -> list[list[str]]:
    """From the card's capacity down to the requests that fit, to be followed with a pencil."""
    return [
        [f"{name} on {on.name}", "a GPU", "computed"],
        ["usable", f"{utilization:g} × {on.capacity_text}", bytes_text(utilization * on.capacity)],
        ["− weights", "", bytes_text(found.weight_bytes)],
        ["− reserve", "activations, context, graphs", bytes_text(found.reserve_bytes)],
        ["= KV cache", "", bytes_text(found.kv_bytes)],
        ["a token", "", bytes_text(found.kv_bytes_per_token)],
        ["blocks", f"of {block_size} tokens", f"{found.kv_blocks:,}"],
        ["tokens", f"{found.kv_blocks:,} × {block_size}", f"{found.kv_tokens:,}"],
        ["requests", f"{found.kv_tokens:,} ÷ {context:,}", f"{found.max_concurrency:.2f}"],
        ["fits", f"{wanted} of {context:,} tokens", found.fits],
    ]
