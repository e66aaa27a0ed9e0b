"""A Hugging Face config.json, read as a shape: what people have at hand for their own model."""

import json
from pathlib import Path

from gpucourse.catalog.shapes import Experts, Shape, gpt, llama
from gpucourse.errors import BadInput, unknown

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt2")


def read_config(path: Path) -> Shape:
    """The shape that a config.json describes; BadInput where it cannot be read or is of another family.

    Keys and their defaults are those of the transformers library's configuration classes.
    """
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"config file {path} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("model_type") not in FAMILIES:
        given = config.get("model_type") if isinstance(config, dict) else None
        raise unknown(f"config file {path}: model_type", given, FAMILIES)
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise BadInput(f"config file {path}: {key} is set; only models without it are read")
    name = path.stem if path.stem != "config" else path.resolve().parent.name
    try:
        return _gpt2(name, config) if config["model_type"] == "gpt2" else _llama(name, config)
    except KeyError as error:
        raise BadInput(f"config file {path}: {error.args[0]} is missing") from None


def _gpt2(name: str, config: dict) -> Shape:
    return gpt(name, config["n_layer"], config["n_embd"], config["n_head"], config["vocab_size"],
               config["n_positions"], ffn=config.get("n_inner") or 4 * config["n_embd"], source="config.json")


def _llama(name: str, config: dict) -> Shape:
    family, heads = config["model_type"], config["num_attention_heads"]
    return llama(
        name, config["num_hidden_layers"], config["hidden_size"], heads, config.get("num_key_value_heads") or heads,
        config["intermediate_size"], config["vocab_size"], config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False), head_dim=config.get("head_dim") or 0,
        qkv_bias=family == "qwen2", qk_norm=family.startswith("qwen3"),
        experts=_experts(config), source="config.json",
    )


def _experts(config: dict) -> Experts | None:
    if config["model_type"] == "mixtral":
        return Experts(config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"])
    if config["model_type"] == "qwen3_moe":
        return Experts(config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"])
    return None
