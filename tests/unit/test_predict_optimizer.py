"""The optimizer's state in 8 bits and in host memory. No dry run has either: held by arithmetic done by hand."""

import json
from itertools import pairwise

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.catalog.published import published
from gpucourse.course.cli import main
from gpucourse.errors import BadInput

# Two blocks of hidden 64: matrices of 4,096 elements and more have 8-bit moments, norms do not.
SMALL = llama("small", 2, 64, 4, 2, 176, vocab=1000, context=128)
JOB = Job(1, 64, "bf16", "adamw-8bit", recompute="full")
GiB = 2**30


def test_small_tensors_keep_fp32_moments():
    each_block = [4096, 2048, 2048, 4096, 11264, 11264, 11264]  # q, k, v, out, gate, up, down
    large = 2 * sum(size for size in each_block if size >= 4096) + 2 * 64_000  # and embedding, head
    scales = 2 * (2 * 16 + 3 * 44) + 2 * 250
    small = 2 * (2 * 2048 + 2 * 64) + 64  # k and v, norms, final norm
    expected = 2 * (large + 4 * scales + 4 * small)
    assert predict.memory(SMALL, JOB).states()["optimizer"] == expected
    assert large + small == predict.parameters(SMALL).total


@pytest.mark.parametrize("layout", (Layout(), Layout(dp=8, shard="zero1"), Layout(dp=8, shard="zero3")), ids=str)
def test_8_bit_moments_of_a_large_model_are_a_quarter_and_a_scale(layout):
    model, job = shape("llama-3.1-8b"), Job(1, 1024, "bf16-autocast", layout=layout)
    eight, four = (predict.memory(model, job.but(optimizer=name)).states()["optimizer"]
                   for name in ("adamw-8bit", "adamw"))
    assert eight / four == pytest.approx((1 + 4 / 256) / 4, rel=2e-3)


def test_a_step_in_8_bits_makes_nothing():
    eight, plain = (predict.memory(SMALL, JOB.but(optimizer=name)) for name in ("adamw-8bit", "sgd"))
    assert eight.total("step") - plain.total("step") == eight.states()["optimizer"]


def test_offloaded_state_is_on_the_host_and_in_no_sum_of_the_device():
    job = Job(1, 64, "bf16-master")
    here, away = predict.memory(SMALL, job), predict.memory(SMALL, job.but(offload=True))
    elements = predict.parameters(SMALL).total
    temporaries = sum(line.at.get("step", 0) for line in here.lines if line.name == "temporaries of step()")
    assert away.states()["optimizer"] == 0
    assert here.total("step") - away.total("step") == here.states()["optimizer"] + temporaries
    sizes = {line.name: line.bytes for line in away.host}
    assert sizes["master weights"] == 4 * elements and sizes["optimizer moments"] == 8 * elements
    assert sizes["gradients, copied there"] == 2 * elements
    assert "host: optimizer moments" in str(away) and "host:" not in str(here)
    assert "weights, updated there" in {line.name for line in predict.memory(SMALL, JOB.but(offload=True)).host}


def test_the_command_gives_host_memory_its_own_key(capsys):
    assert main(["predict", "gpt2", "--seq", "1024", "--precision", "fp32", "--offload", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["states_gib"]["optimizer"] == 0
    assert found["host_gib"] == pytest.approx(16 * 124_439_808 / GiB, rel=1e-4)  # moments, gradients, weights


@pytest.mark.parametrize("changes, says", ((dict(optimizer="adamw-8bit"), "adamw-8bit is predicted, not trained"),
                                           (dict(offload=True), "offload is predicted, not trained")))
def test_what_is_predicted_and_not_trained_says_so(changes, says):
    with pytest.raises(BadInput, match=says):
        dryrun.memory(gpt("gpt", 2, 32, 2, vocab=100, context=64), Job(1, 32).but(**changes))


def test_the_ladder_of_levers_goes_down_as_published():
    """A06: torchtune, Llama 3.2 3B; sign and order of what can be predicted, from the packed dataset on."""
    model, job = shape("llama-3.2-3b"), Job(2, 4096, "bf16")
    levers = (dict(), dict(chunked_loss=8), dict(recompute="full"), dict(optimizer="adamw-8bit"))
    names = ("+ packed dataset", "+ chunked cross-entropy", "+ activation checkpointing", "+ 8-bit AdamW")
    peaks = []
    for lever in levers:
        job = job.but(**lever)
        peaks.append(predict.memory(model, job).peak / GiB)
    rows = {row["technique"]: float(row["gib"]) for row in published("memory") if row["case"] == "A06"}
    for steps in (peaks, [rows[name] for name in names]):
        assert all(before > after for before, after in pairwise(steps))


@pytest.mark.parametrize("technique", ("eager", "compile", "compile + float8"))
def test_from_8_to_128_gpus_the_peak_falls_by_the_sharded_state(technique):
    """A02: weights and moments, 12 of 16 bytes, as the peak is at the loss, where no gradients are; and the peaks."""
    model = shape("llama-3.1-8b")
    job = Job(2, 8192, "bf16-autocast", recompute="op-2")
    few, many = (predict.memory(model, job.but(layout=Layout(dp=n, shard="zero3"))) for n in (8, 128))
    seen = [float(row["gib"]) for row in published("memory") if (row["case"], row["technique"]) == ("A02", technique)]
    assert few.peak_at == many.peak_at == "loss"
    fewer = 12 * predict.parameters(model).total * (1 / 8 - 1 / 128)
    assert few.peak - many.peak == pytest.approx(fewer, rel=0.01)
    for ledger, figure in zip((few, many), seen, strict=True):
        low, high = ledger.reserved
        assert low / GiB <= figure <= high / GiB
