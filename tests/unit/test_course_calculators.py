import json

import pytest

from gpucourse.course.cli import main

MFU = ["mfu", "llama-3.1-8b", "--gpu", "a100-80", "--tokens-per-second", "185856", "--gpus", "64", "--seq", "8192"]
SERVE = ["serve-plan", "llama-3.1-8b", "--gpu", "rtx-4090", "--context", "20000"]


def test_mfu_as_json_has_the_stable_keys(capsys):
    assert main([*MFU, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"mfu", "hfu", "convention", "precision", "tflops_per_gpu", "flops_per_token", "peak_tflops",
                          "warnings"}
    assert found["mfu"] == pytest.approx(0.568, abs=0.001)  # B01


def test_mfu_prints_its_arithmetic(capsys):
    assert main(MFU) == 0
    out = capsys.readouterr().out
    assert "6 × 8,030,261,248" in out and "12 × 32 × 4,096 × 8,192" in out and "56.8" in out


def test_mfu_over_the_peak_warns_and_still_answers(capsys):
    assert main([*MFU[:-4], "--seq", "8192"]) == 0
    assert "warning: MFU is" in capsys.readouterr().out


def test_serve_plan_as_json_has_the_stable_keys(capsys):
    assert main([*SERVE, "--reserve-gib", "2.47", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"weights_gib", "kv_bytes_per_token", "kv_gib", "kv_tokens", "kv_blocks", "max_concurrency",
                          "fits"}
    assert found["kv_gib"] == pytest.approx(3.81, abs=0.01)  # A16
    assert found["fits"] == "yes"


def test_serve_plan_prints_a_sum(capsys):
    assert main(SERVE) == 0
    out = capsys.readouterr().out
    assert "0.9 × 23.6 GiB" in out and "128.0 KiB" in out and "20,000" in out


def test_serve_plan_says_where_a_capacity_is_estimated(capsys):
    assert main(["serve-plan", "llama-3.1-70b", "--gpu", "gb300"]) == 0
    assert "258.54 GiB (estimated)" in capsys.readouterr().out


def test_serve_plan_of_quantised_weights(capsys):
    arguments = ["serve-plan", "llama-2-70b", "--gpu", "a100-40", "--context", "1000", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["fits"] == "no"
    assert main([*arguments, "--weights", "nf4-double", "--utilization", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_gib"] < 36


@pytest.mark.parametrize(("arguments", "says"), [
    ([*MFU, "--precision", "fp4"], "precision 'fp4'"),
    ([*MFU, "--tokens-per-second", "nan"], "tokens-per-second is nan"),
    ([*MFU, "--seq", "-1"], "seq is -1"),
    (["mfu", "llama-9", *MFU[2:]], "model 'llama-9'"),
    ([*SERVE, "--gpu", "h300"], "did you mean"),
    ([*SERVE, "--tp", "5"], "tensor parallel is 5"),
    ([*SERVE, "--utilization", "2"], "utilization is 2"),
    ([*SERVE, "--context", "many"], "--context"),
])
def test_bad_values_are_one_line_and_exit_2(capsys, arguments, says):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and shown.out == ""
