"""What was published, held against the parts that it depends on alone."""

import csv

import pytest

from gpucourse.catalog.gpus import gpus
from gpucourse.catalog.models import models, shape
from gpucourse.catalog.units import GiB, MiB
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


def test_what_one_and_eight_processes_allocate():
    # A14: karpathy/llm.c#309, GPT-2 with its vocabulary padded to 50,304
    count = parameters(shape("gpt2").but(vocab=50304)).total
    assert count == 124_475_904
    assert 2 * count / MiB == pytest.approx(237, abs=1)
    assert [4 * count / n / MiB for n in (1, 2, 8)] == pytest.approx([474.8, 237.4, 59.4], abs=0.05)


def test_weights_of_bert():
    # A12: huggingface/transformers model_memory_anatomy: 2,631 − 1,343 MiB
    assert 4 * parameters(shape("bert-large")).total / MiB == pytest.approx(2631 - 1343, rel=0.02)
