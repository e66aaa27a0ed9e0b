import json

import pytest

from gpucourse.catalog.units import GiB
from gpucourse.course.cli import main

GPT = ["predict", "gpt2", "--gpu", "a100-40", "--micro-batch", "8"]
LLAMA = ["predict", "llama-3.1-8b", "--gpu", "h100-sxm"]
SEARCH = ["search", "gpt2-xl", "--gpu", "a100-40", "--gpus", "8", "--global-batch", "16", "--seq", "1024"]
KEYS = {"parameters", "allocated_gib", "reserved_gib", "device_gib", "states_gib", "peak_at", "lines", "traffic",
        "bubble", "step_seconds", "tokens_per_second_per_gpu", "mfu", "fits"}


def as_json(capsys, arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_predict_as_json_has_the_stable_keys(capsys):
    found = as_json(capsys, GPT)
    assert set(found) >= KEYS
    assert found["parameters"] == 124_439_808
    assert set(found["states_gib"]) == {"weights", "gradients", "optimizer"}
    assert all(set(line) >= {"name", "bytes", "formula", "source", "at"} for line in found["lines"])
    assert found["fits"] == "yes"
    for interval in ("reserved_gib", "device_gib", "step_seconds", "tokens_per_second_per_gpu", "mfu"):
        low, high = found[interval]
        assert 0 < low < high


def test_the_lines_add_up_to_what_is_allocated(capsys):
    found = as_json(capsys, GPT)
    total = sum(line["at"].get(found["peak_at"], 0) for line in found["lines"])
    assert total / GiB == pytest.approx(found["allocated_gib"])


def test_without_a_gpu_the_same_keys_hold_no_time(capsys):
    found = as_json(capsys, ["predict", "gpt2"])
    assert set(found) >= KEYS
    assert found["step_seconds"] is None and found["fits"] is None and found["allocated_gib"] > 1


def test_predict_prints_a_sum_that_a_pencil_can_follow(capsys):
    assert main(GPT) == 0
    out = capsys.readouterr().out
    assert "4 × 124,439,808" in out and "allocated" in out
    assert "8,192 tokens × 1 of the model" in out and "271 TFLOP/s × 0.9 … 0.45" in out
    assert "of 39.39 GiB: fits: yes" in out
    assert "bubble" not in out and "axis" not in out  # one GPU waits for nobody


def test_a_config_of_ones_own_is_a_model(capsys, tmp_path):
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
              "n_positions": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert as_json(capsys, ["predict", str(tmp_path / "config.json")])["parameters"] == 124_439_808


@pytest.mark.parametrize(("pp", "warned"), [(4, 0), (5, 1)])
def test_layers_that_stages_share_unevenly_are_a_warning(capsys, pp, warned):
    llama = ["predict", "llama-3.1-8b", "--pp", str(pp)]
    found = as_json(capsys, llama)
    assert len(found["warnings"]) == warned and all("2 have 7, 3 have 6" in warning for warning in found["warnings"])
    assert main(llama) == 0
    assert capsys.readouterr().out.count("warning: 32 layers on 5 stages") == warned


@pytest.mark.parametrize(("arguments", "says"), [
    (["predict", "gpt3"], "model 'gpt3' is not known; did you mean gpt2"),
    ([*GPT, "--gpu", "a100"], "GPU 'a100' is not known; did you mean a100-40"),
    ([*GPT, "--precision", "bf15"], "precision 'bf15' is not known; did you mean bf16"),
    ([*GPT, "--optimizer", "adam"], "optimizer 'adam' is not known; did you mean adamw"),
    ([*GPT, "--recompute", "ful"], "recompute 'ful' is not known; did you mean full"),
    ([*GPT, "--shard", "zero4"], "shard 'zero4' is not known"),
    ([*GPT, "--schedule", "1f2b", "--pp", "2"], "schedule '1f2b' is not known; did you mean 1f1b"),
    ([*GPT, "--dp", "2", "--gpus-per-node", "1", "--network", "ib-4000"], "link 'ib-4000' is not known"),
    ([*GPT, "--micro-batch", "0"], "micro-batch is 0"),
    ([*GPT, "--seq", "-5"], "seq is -5"),
    ([*GPT, "--seq", "nan"], "--seq"),
    ([*GPT, "--tp", "0"], "tp is 0"),
    ([*GPT, "--seq", "2048"], "seq 2048 is longer than the context of gpt2: 1024"),
    ([*GPT, "--dp", "8", "--gpus", "4"], "8 ranks; there are 4 GPUs"),
    (["predict", "gpt2", "--dp", "8", "--gpus", "4"], "8 ranks; there are 4 GPUs"),
    (["predict", "gpt2", "--gpus", "-4"], "gpus is -4"),
    ([*LLAMA, "--tp", "5"], "tp is 5; llama-3.1-8b has 32 heads"),
    ([*LLAMA, "--pp", "33", "--gpus-per-node", "33", "--network", "ib-400"], "33 stages; llama-3.1-8b has 32 layers"),
    ([*LLAMA, "--seq", "4", "--cp", "8"], "cp is 8; the job has 4 tokens"),
    ([*LLAMA, "--dp", "16"], "name the network between them"),
    ([*LLAMA, "--dp", "16", "--network", "nan:1"], "link 'nan:1'"),
    ([*LLAMA, "--dp", "4", "--ep", "2"], "ep is 2; llama-3.1-8b has 0 experts"),
    ([*LLAMA, "--pp", "4", "--schedule", "zbv", "--accumulate", "4"], "needs at least 8"),
    (["predict", "mixtral-8x7b", "--gpu", "h200", "--dp", "3", "--ep", "3"], "ep is 3; mixtral-8x7b has 8 experts"),
    ([*SEARCH, "--gpus", "0"], "gpus is 0"),
    ([*SEARCH, "--gpus", "16"], "name the network"),
    ([*SEARCH, "--global-batch", "-1"], "global-batch is -1"),
    ([*SEARCH, "--seq", "2048"], "longer than the context"),
    ([*SEARCH, "--top", "0"], "top is 0"),
    (["search", "gpt2-xl"], "--gpu"),
])
def test_bad_values_are_one_line_and_exit_2(capsys, arguments, says):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_search_as_json_gives_plans_with_their_layout_and_reason(capsys):
    found = as_json(capsys, [*SEARCH, "--top", "3"])
    assert len(found["plans"]) == 3 and found["layouts"] >= 3
    for plan in found["plans"]:
        assert set(plan) >= KEYS | {"dp", "tp", "pp", "cp", "ep", "shard", "micro_batch", "accumulate", "recompute",
                                    "why", "levers"}
        assert plan["fits"] == "yes"
        assert plan["dp"] * plan["micro_batch"] * plan["accumulate"] == 16
    assert found["plans"][0]["why"] and found["plans"][-1]["why"] == ""


def test_search_prints_reasons_and_levers(capsys):
    assert main([*SEARCH, "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "1 beats 2: " in out and "From plan 1: " in out and "8 × a100-40, nvlink3 within 8" in out


def test_search_says_where_nothing_fits(capsys):
    assert main(["search", "llama-2-70b", "--gpu", "l4", "--gpus", "1", "--global-batch", "1", "--seq", "1024"]) == 0
    assert "No layout fits. The one shown needs least" in capsys.readouterr().out
