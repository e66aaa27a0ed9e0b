"""The closed form against the dry run: the same step, counted by arithmetic and by dispatch."""

import random

import pytest

from gpucourse import catalog, dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama
from gpucourse.errors import BadInput
from gpucourse.evidence import INSTANTS, STATES

# Scalars that the closed form leaves out: the loss, its gradient, its running sum.
SCALARS = 16


def small_shape(draw: random.Random):
    heads = draw.choice((2, 4))
    hidden = heads * draw.choice((16, 32, 48))
    common = dict(layers=draw.choice((2, 3, 4, 7)), hidden=hidden, heads=heads, vocab=draw.choice((257, 1000, 4096)),
                  context=256, ffn=draw.choice((2 * hidden, 3 * hidden + 8)), tied=draw.choice((True, False)))
    if draw.random() < 0.5:
        return gpt("gpt", **common)
    return llama("llama", kv_heads=draw.choice((1, heads)), **common)


def small_job(draw: random.Random):
    how = draw.choice((dict(), dict(foreach=False), dict(foreach=False, fused=True)))
    return Job(micro_batch=draw.choice((1, 3)), seq=draw.choice((32, 100, 256)),
               recompute=draw.choice(("none", "attention", "op", "full")),
               precision=draw.choice(("fp32", "bf16", "bf16-autocast", "fp16-autocast")),
               optimizer=draw.choice(("adamw", "sgd", "momentum")), accumulate=draw.choice((1, 1, 2)),
               chunked_loss=draw.choice((0, 0, 1, 3, 8)), **how)


def draws(count: int, seed: int = 2026):
    source = random.Random(seed)
    return [(small_shape(source), small_job(source)) for _ in range(count)]


@pytest.mark.parametrize("shape, job", draws(20), ids=lambda case: getattr(case, "name", str(case)))
def test_peak_equals_the_dry_run(shape, job):
    computed, dry = predict.memory(shape, job), dryrun.memory(shape, job)
    biases = 40 * shape.hidden + 4 * shape.ffn  # autocast's 16-bit biases: cast and freed, not modelled
    allowed = SCALARS + 8 * job.chunked_loss + (biases if shape.bias and job.bytes.autocast else 0)
    assert abs(computed.peak - dry.peak) <= allowed
    assert computed.peak_at == dry.peak_at or abs(computed.total(dry.peak_at) - dry.peak) <= allowed


@pytest.mark.parametrize("shape, job", draws(6, seed=7), ids=lambda case: getattr(case, "name", str(case)))
def test_states_equal_the_dry_run_to_the_byte(shape, job):
    computed, dry = predict.memory(shape, job).states(), dryrun.memory(shape, job).at["step"]
    assert computed == {name: dry.get(name, 0) for name in STATES}


def test_every_instant_of_a_gpt_and_a_llama_step():
    common = dict(vocab=500, context=128)
    for shape in (gpt("gpt", 3, 64, 2, **common), llama("llama", 3, 64, 4, 2, 176, **common)):
        for recompute in ("none", "attention", "op", "op-2", "full"):
            job = Job(2, 128, recompute=recompute)
            computed, dry = predict.memory(shape, job), dryrun.memory(shape, job)
            for instant in INSTANTS:
                assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS, (shape.name, recompute, instant)


@pytest.mark.parametrize("job", (Job(2, 128), Job(2, 100, "bf16", recompute="full"), Job(1, 128, "bf16-autocast"),
                                 Job(1, 16, "bf16")), ids=str)
@pytest.mark.parametrize("parts", (dict(head_dim=32), dict(head_dim=12, tied=True), dict(qkv_bias=True),
                                   dict(qk_norm=True), dict(head_dim=24, qk_norm=True, qkv_bias=True)), ids=str)
def test_every_instant_with_other_heads_biases_and_norms(parts, job):
    shape = llama("llama", 3, 64, 4, 2, 176, vocab=500, context=128, **parts)
    computed, dry = predict.memory(shape, job), dryrun.memory(shape, job)
    biases = 6 * (shape.q_hidden + 2 * shape.kv_hidden)  # autocast's 16-bit biases, and those of a recomputed block
    allowed = SCALARS + (biases if shape.qkv_bias and job.bytes.autocast else 0)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= allowed, instant
    assert computed.states() == {name: dry.at["step"].get(name, 0) for name in STATES}


def test_every_published_shape_of_these_parts_is_predicted():
    for name in ("qwen2.5-0.5b", "qwen2.5-72b", "qwen3-4b", "llama-3.2-1b", "llama-3.2-3b"):
        what, job = catalog.shape(name), Job(1, 1024, "bf16")
        assert predict.memory(what, job).states()["gradients"] == 2 * predict.parameters(what).total
    nemo = llama("mistral-nemo", 40, 5120, 32, 8, 14336, vocab=131072, context=131072, head_dim=128)
    assert predict.memory(nemo, Job(1, 1024, "bf16")).states()["gradients"] == 2 * 12_247_782_400


@pytest.mark.parametrize("parts", (1, 2, 3, 40))
def test_every_instant_of_a_loss_in_parts(parts):
    common = dict(vocab=500, context=128)
    for shape in (gpt("gpt", 2, 32, 2, **common), llama("llama", 2, 32, 4, 2, 88, **common)):
        job = Job(1, 100, recompute="full", chunked_loss=parts)
        computed, dry = predict.memory(shape, job), dryrun.memory(shape, job)
        for instant in INSTANTS:
            assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS + 8 * parts, (shape.name, instant)


def test_parts_finer_than_the_matrix_do_not_lower_the_peak():
    shape, job = gpt("gpt", 2, 64, 2, vocab=4000, context=512), Job(1, 512, recompute="full")
    peaks = [predict.memory(shape, job.but(chunked_loss=parts)).total("loss") for parts in (0, 1, 4, 32, 128)]
    assert peaks[:4] == sorted(peaks[:4], reverse=True)
    assert abs(peaks[4] - peaks[3]) < 4 * 512 * 64 < peaks[2] - peaks[3]  # less than the hidden states


def test_a_loss_in_parts_is_not_for_a_divided_sequence():
    shape, job = llama("llama", 2, 32, 4, 2, 88, vocab=500, context=128), Job(1, 64, chunked_loss=4)
    with pytest.raises(BadInput, match="chunked-loss is 4 with sequence-parallel; .*use vocab-parallel-loss"):
        predict.memory(shape, job.but(layout=Layout(tp=2, sequence_parallel=True)))


def test_a_changed_coefficient_would_be_seen():
    shape, job = gpt("gpt", 3, 64, 2, vocab=500, context=128), Job(2, 128)
    dry = dryrun.memory(shape, job)
    assert abs(predict.memory(shape.but(ffn=shape.ffn + 1), job).peak - dry.peak) > SCALARS


def test_lines_sum_to_the_total_and_peak_is_the_largest_instant():
    ledger = predict.memory(gpt("gpt2", 12, 768, 12), Job(8, 1024))
    totals = {i: sum(line.at.get(i, 0) for line in ledger.lines) for i in INSTANTS}
    assert totals == {i: ledger.total(i) for i in INSTANTS}
    assert ledger.peak == max(totals.values()) == ledger.total(ledger.peak_at)


def test_readable_as_text_and_html():
    ledger = predict.memory(gpt("gpt2", 12, 768, 12), Job(8, 1024))
    text = str(ledger)
    assert "4 × 124,439,808" in text and "12 × [n·(24h" in text and "◀" in text and "on a GPU: reserved" in text
    assert "<table>" in ledger._repr_html_()


def test_fits_has_three_answers():
    shape, job = gpt("gpt2", 12, 768, 12), Job(8, 1024)
    ledger = predict.memory(shape, job)
    assert ledger.fits("h100-sxm") == "yes"
    assert predict.memory(shape, job.but(micro_batch=64)).fits("t4") == "no"
    low, high = ledger.device
    assert ledger.fits("t4") == ("yes" if high <= 14.56 * 2**30 else "no" if low > 14.75 * 2**30 else "uncertain")


def test_bad_input_is_one_line():
    shape = gpt("gpt", 2, 64, 2, context=128)
    with pytest.raises(BadInput, match="seq 256 is longer than the context of gpt: 128"):
        predict.memory(shape, Job(1, 256))
    with pytest.raises(BadInput, match="micro-batch is 0; it must be a whole number of at least 1"):
        Job(0, 128)
    with pytest.raises(BadInput, match="precision 'fp31' is not known; did you mean fp32"):
        Job(1, 128, precision="fp31")
    with pytest.raises(BadInput, match="3 heads do not divide hidden 64"):
        gpt("gpt", 2, 64, 3)
    with pytest.raises(BadInput, match="hidden is -64"):
        gpt("gpt", 2, -64, 2)
