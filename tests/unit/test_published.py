"""What was published, held against the parts that it depends on alone."""

import csv

import pytest

from gpucourse.catalog.gpus import gpus
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.models import models, shape
from gpucourse.catalog.units import GiB, MiB
from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.settings import DATA


def rows(name):
    return list(csv.DictReader((DATA / "published" / name).read_text().splitlines()))


MEMORY, THROUGHPUT = rows("memory.csv"), rows("throughput.csv")


def test_every_row_has_a_source_and_a_known_model():
    for row in (*MEMORY, *THROUGHPUT):
        assert row["source"] and row["model"] in models()
    assert {row["gpu"] for row in THROUGHPUT} <= set(gpus())
    assert {row["quantity"] for row in MEMORY} == {"reserved", "active"}


def test_a_layout_uses_every_gpu():
    for row in MEMORY:
        parts = [int(row[axis]) for axis in ("shard", "tensor", "pipeline", "context")]
        assert int(row["gpus"]) == parts[0] * parts[1] * parts[2] * parts[3]


@pytest.mark.parametrize("technique", ["eager", "compile", "compile + float8"])
def test_from_8_to_128_gpus_only_the_sharded_state_shrinks(technique):
    # A02: 16 bytes a parameter, divided by 8 and then by 128
    few, many = (next(float(row["gib"]) for row in MEMORY if row["case"] == "A02" and row["technique"] == technique
                      and row["gpus"] == number) for number in ("8", "128"))
    predicted = 16 * parameters(shape("llama-3.1-8b")).total * (1 / 8 - 1 / 128) / GiB
    assert predicted == pytest.approx(14.02, abs=0.01)
    assert 13 <= predicted <= 16
    assert few - many == pytest.approx(predicted, rel=0.1)


def test_a_small_model_in_pure_bf16_is_nearly_all_state():
    # A06: 8 bytes a parameter of 25.5 GiB
    state = 8 * parameters(shape("llama-3.2-3b")).total / GiB
    assert state == pytest.approx(23.9, rel=0.01)
    assert state < float(MEMORY[[row["technique"] for row in MEMORY].index("baseline")]["gib"]) < state + 3


def test_what_zero_leaves_after_a_step():
    # A10: deepspeedai/DeepSpeed#3734, 13B on 8 GPUs; the log's GB are GiB
    count = parameters(shape("llama-2-13b")).total
    assert (2 + 14 / 8) * count / GiB == pytest.approx(45.46, rel=0.01)
    assert 16 / 8 * count / GiB == pytest.approx(25.31, rel=0.05)
    job = Job(1, 1024, "bf16-master")
    layouts = [Layout(dp=8, shard=shard) for shard in ("zero2", "zero3")]
    held = [sum(memory(shape("llama-2-13b"), job.but(layout=layout)).states().values()) for layout in layouts]
    assert held[0] / GiB == pytest.approx(45.46, rel=0.01)
    assert held[1] / GiB == pytest.approx(25.31, rel=0.05)


def test_what_one_and_eight_processes_allocate():
    # A14: karpathy/llm.c#309, GPT-2 with its vocabulary padded to 50,304
    count = parameters(shape("gpt2").but(vocab=50304)).total
    assert count == 124_475_904
    assert 2 * count / MiB == pytest.approx(237, abs=1)
    assert [4 * count / n / MiB for n in (1, 2, 8)] == pytest.approx([474.8, 237.4, 59.4], abs=0.05)
    layouts = Layout(), Layout(dp=2, shard="zero1"), Layout(dp=8, shard="zero1")
    ledgers = [memory(shape("gpt2").but(vocab=50304), Job(1, 1024, "bf16", layout=layout)) for layout in layouts]
    weights, gradients, moments = zip(*(one.states().values() for one in ledgers), strict=True)
    assert len(set(weights)) == len(set(gradients)) == 1  # only the moments change with the number of processes
    assert [moments[0] / now for now in moments] == pytest.approx([1, 2, 8], rel=1e-4)


def test_weights_of_bert():
    # A12: huggingface/transformers model_memory_anatomy: 2,631 − 1,343 MiB
    assert 4 * parameters(shape("bert-large")).total / MiB == pytest.approx(2631 - 1343, rel=0.02)


def test_activations_of_a_long_sequence_by_component():
    # A20: stas00/ml-engineering, Llama 3.1 8B in bf16, one sequence of 32k
    model, job = shape("llama-3.1-8b"), Job(1, 32768, "bf16")
    kept, whole = (memory(model, job.but(recompute=name)) for name in ("full", "none"))
    lines = {line.name: line.bytes / GiB for line in (*whole.lines, *kept.lines)}
    checkpoints, layer = lines["inputs of the blocks"], lines["saved by the blocks"] / 32
    logits = 4 * job.tokens * model.vocab / GiB
    assert checkpoints == pytest.approx(8.0, rel=1e-3)
    assert logits == pytest.approx(15.66, abs=0.01)
    assert layer == pytest.approx(7.0, rel=0.1)  # 28 copies of the hidden state there, 26.5 in our eager network
    assert checkpoints + logits + layer == pytest.approx(31, rel=0.05)
    states = sum(whole.states().values()) - 2 * parameters(model).total  # gradients do not exist at the loss
    assert (whole.total("loss") - states) / GiB == pytest.approx(240, rel=0.2)
