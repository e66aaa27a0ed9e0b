import json

import pytest

from gpucourse.catalog.models import models, published_parameters, shape
from gpucourse.catalog.shapes import Experts, Latent, gpt, llama
from gpucourse.errors import BadInput
from gpucourse.predict.parameters import parameters


@pytest.mark.parametrize("name", models())
def test_parameter_count_is_the_published_one(name):
    assert parameters(shape(name)).total == published_parameters(name)
    assert shape(name).source


@pytest.mark.parametrize(("name", "active"), [
    ("mixtral-8x7b", 12.9e9),  # Mixtral of Experts, arXiv 2401.04088, section 2
    ("deepseek-v3", 37e9),     # DeepSeek-V3 report, arXiv 2412.19437, abstract
    ("qwen3-235b", 22e9),      # Qwen3 report, arXiv 2505.09388, table 2
])
def test_active_parameters_are_the_published_ones(name, active):
    assert parameters(shape(name)).active == pytest.approx(active, rel=0.02)


def test_dense_models_use_every_parameter():
    count = parameters(shape("llama-3.1-8b"))
    assert count.active == count.total


def test_names_that_do_not_exist_are_refused_with_the_nearest():
    with pytest.raises(BadInput, match="model 'llama-3-8b' is not known; did you mean llama-3.1-8b"):
        shape("llama-3-8b")


def test_a_model_file_of_the_same_form(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[mine]\nstyle = "llama"\nlayers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nffn = 128\n')
    assert shape(str(file)) == llama("mine", 2, 64, 4, 2, 128)


@pytest.mark.parametrize(("text", "message"), [
    ("layers = 2", "exactly one table"),
    ("[a]\nstyle='gpt'\n[b]\nstyle='gpt'", "exactly one table"),
    ("[a]\nlayers = 2", "style None is not known"),
    ("[a]\nstyle = 'gpt'\nlayers = 2", "missing 2 required positional arguments: 'hidden' and 'heads'"),
    ("[a]\nstyle = 'gpt'\nlayers = 2\nhiden = 64\nheads = 4", "key 'hiden' is not known; did you mean hidden"),
    ("[a]\nstyle = 'gpt'\nlayers = -2\nhidden = 64\nheads = 4", "layers is -2"),
    ("[a]\nstyle = 'gpt'\nlayers = 2\nhidden = 64\nheads = 5", "5 heads do not divide hidden 64"),
    ("[a]\nstyle = 'gpt'\nlayers = 2\nhidden = 64\nheads = 4\nexperts = { count = 4, top = 2 }", "top"),
    ("not toml", "cannot be read"),
])
def test_model_files_that_cannot_be_used_are_refused(tmp_path, text, message):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        shape(str(file))


def test_a_model_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        shape(str(tmp_path / "none.toml"))


LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
         "attention_bias": False, "tie_word_embeddings": False}
CONFIGS = {
    "llama-3.1-8b": LLAMA,
    "mistral-7b": LLAMA | {"model_type": "mistral", "vocab_size": 32000, "max_position_embeddings": 32768},
    "mixtral-8x7b": LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "max_position_embeddings": 32768,
                             "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2.5-0.5b": {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
                     "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                     "max_position_embeddings": 32768, "tie_word_embeddings": True},
    "qwen3-235b": {"model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64,
                   "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
                   "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8,
                   "moe_intermediate_size": 1536, "tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
             "n_positions": 1024, "n_inner": None},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hugging_face_config_is_the_same_shape(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    assert shape(str(folder)).but(source="") == shape(name).but(source="")
    assert shape(str(folder / "config.json")) == shape(str(folder))


@pytest.mark.parametrize(("config", "message"), [
    (LLAMA | {"model_type": "mamba"}, "model_type 'mamba' is not known"),
    ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "hidden_size is missing"),
    (LLAMA | {"hidden_size": "4096"}, "hidden is '4096'"),
    (LLAMA | {"num_hidden_layers": 0}, "layers is 0"),
    (LLAMA | {"attention_bias": True}, "attention_bias is set"),
    ([], "model_type None is not known"),
])
def test_configs_that_cannot_be_used_are_refused(tmp_path, config, message):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(BadInput, match=message):
        shape(str(file))


def test_a_config_that_is_not_json(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        shape(str(file))


def test_experts_and_latent_attention_are_checked():
    with pytest.raises(BadInput, match="per_token is 9; there are only 8"):
        Experts(8, 9, 64)
    with pytest.raises(BadInput, match="count is 0"):
        Experts(0, 1, 64)
    with pytest.raises(BadInput, match="kv_rank is -1"):
        Latent(-1, 8, 8, 8)
    with pytest.raises(BadInput, match="dense_layers is 2"):
        gpt("m", 2, 64, 4, experts=Experts(4, 2, 64, dense_layers=2))
    with pytest.raises(BadInput, match="head_dim is -8"):
        gpt("m", 2, 64, 4, head_dim=-8)
