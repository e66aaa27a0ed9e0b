"""Adapters on frozen weights: the closed form against the dry run, and what freezing saves."""

import pytest
import torch

from gpucourse import dryrun, models, predict
from gpucourse.catalog import Job, Layout, gpt, llama, shape
from gpucourse.catalog.units import GiB, KiB
from gpucourse.errors import BadInput
from gpucourse.evidence import STATES
from gpucourse.predict.lora import gradient_bytes

SMALL = dict(vocab=500, context=128)
SHAPES = {"llama": llama("llama", 3, 64, 4, 2, 176, **SMALL), "gpt": gpt("gpt", 3, 64, 4, **SMALL),
          "wide": llama("wide", 3, 64, 4, 2, 176, head_dim=24, qk_norm=True, **SMALL)}
SCALARS = 16  # the loss, its gradient, its running sum


@pytest.mark.parametrize("name, job", (("llama", Job(2, 128, lora=4)), ("gpt", Job(1, 100, "bf16", lora=2)),
                                       ("llama", Job(1, 64, "bf16", recompute="full", lora=4)),
                                       ("gpt", Job(1, 64, recompute="full", lora=4, accumulate=2)),
                                       ("llama", Job(2, 64, "bf16", recompute="op", lora=4)),
                                       ("llama", Job(2, 64, "bf16-autocast", recompute="full", lora=4,
                                                     layout=Layout(dp=4, shard="zero3")))), ids=str)
def test_every_instant_equals_the_dry_run(name, job):
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    assert computed.instants == tuple(dry.at) and "embedding" not in dry.at
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS, instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("parts", (1, 3, 40))
@pytest.mark.parametrize("name, job", (("llama", Job(2, 64, lora=4)),
                                       ("gpt", Job(1, 100, "bf16", lora=4, accumulate=2)),
                                       ("llama", Job(1, 100, "bf16-autocast", recompute="full", lora=4)),
                                       ("gpt", Job(2, 64, "bf16-autocast", lora=4,
                                                   layout=Layout(dp=2, shard="zero3")))), ids=str)
def test_every_instant_of_a_frozen_head_in_parts(name, job, parts):
    job = job.but(chunked_loss=parts)
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS + 8 * parts, instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


@pytest.mark.parametrize("layout", (Layout(tp=2), Layout(tp=2, sequence_parallel=True, vocab_parallel_loss=True),
                                    Layout(dp=2, shard="zero3", tp=2, sequence_parallel=True)), ids=str)
@pytest.mark.parametrize("name, job", (("llama", Job(2, 64, lora=4)),
                                       ("gpt", Job(1, 32, "bf16", recompute="full", lora=4, accumulate=2)),
                                       ("llama", Job(2, 32, "bf16-autocast", recompute="op", lora=4)),
                                       ("gpt", Job(2, 32, "bf16", lora=2, optimizer="momentum")),
                                       ("wide", Job(2, 32, "bf16", recompute="attention", lora=2, optimizer="sgd"))),
                         ids=str)
def test_every_instant_of_divided_adapters_equals_the_dry_run(name, job, layout):
    job = job.but(layout=layout)
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS, instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


def test_of_an_adapter_pair_one_is_whole_on_every_rank():
    model, rank, tp = shape("llama-3.1-8b"), 16, 8
    h, k, f = model.hidden, model.kv_hidden, model.ffn
    divided = 2 * h + 2 * k + 3 * f  # outputs of q, k, v, gate and up, inputs of out and down
    gradients = predict.memory(model, Job(1, 1024, "bf16", lora=rank, layout=Layout(tp=tp))).states()["gradients"]
    assert gradients == 2 * model.layers * rank * (7 * h + divided // tp)


@pytest.mark.parametrize("recompute", ("none", "full"))
def test_under_autocast_the_peak_is_within_half_a_percent(recompute):
    job = Job(2, 128, "bf16-autocast", recompute=recompute, lora=4)
    computed, dry = predict.memory(SHAPES["llama"], job), dryrun.memory(SHAPES["llama"], job)
    assert computed.peak == pytest.approx(dry.peak, rel=0.005)
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


def test_only_adapters_have_gradients_and_moments():
    model, rank = shape("llama-3.1-8b"), 16
    h, k, f = model.hidden, model.kv_hidden, model.ffn
    each = rank * (2 * (h + h) + 2 * (h + k) + 3 * (h + f))  # q and out, k and v, the MLP's three
    states = predict.memory(model, Job(1, 1024, "bf16", lora=rank)).states()
    assert states["gradients"] == 2 * model.layers * each
    tables = 8 * model.context * model.head_size
    assert states["weights"] == 2 * (predict.parameters(model).total + model.layers * each) + tables


def test_a_block_still_saves_its_inputs_for_the_adapters():
    """Freezing spares states; of what is saved only the scaled input of a norm goes."""
    model, job = SHAPES["llama"], Job(2, 128)
    whole, frozen = (predict.memory(model, job.but(lora=rank)) for rank in (0, 4))
    kept = [next(line.bytes for line in one.lines if line.name == "saved by the blocks") for one in (whole, frozen)]
    assert 0.7 * kept[0] < kept[1] < 1.1 * kept[0]
    assert sum(frozen.states().values()) < 0.5 * sum(whole.states().values())


def test_the_adapted_model_begins_as_the_frozen_one_and_trains_adapters_alone():
    job = Job(2, 32, lora=4)
    plain, adapted = (models.training(SHAPES["llama"], job.but(lora=rank), seed=3) for rank in (0, 4))
    tokens = torch.arange(64).view(2, 32)
    before = {name: p.clone() for name, p in adapted.model.named_parameters()}
    assert torch.allclose(plain.loss(tokens, tokens), adapted.loss(tokens, tokens), atol=1e-6)
    adapted.step(tokens, tokens)
    changed = {name for name, p in adapted.model.named_parameters() if not torch.equal(p, before[name])}
    trainable = {name for name, p in adapted.model.named_parameters() if p.requires_grad}
    assert changed == trainable and all(name.split(".")[-2] in ("a", "b") for name in changed)


def test_a_flattened_unit_has_gradients_of_its_frozen_weights_too():
    """A22: 106,496 trained elements in a unit of 1,451,376,640."""
    trained, together = 106_496, 1_451_376_640
    assert gradient_bytes(trained, together - trained, 2, flattened=True) / GiB == pytest.approx(2.70, abs=0.005)
    assert gradient_bytes(trained, together - trained, 2, flattened=False) == 208 * KiB


def test_sharded_per_parameter_only_adapters_wait_for_reduction():
    model, job = shape("llama-3.1-8b"), Job(1, 1024, "bf16", layout=Layout(dp=8, shard="zero3"))
    whole, frozen = (predict.memory(model, job.but(lora=rank)) for rank in (0, 16))
    whole, frozen = ({line.name: line.bytes for line in one.lines} for one in (whole, frozen))
    assert frozen["reduce-scatter buffer"] < 0.02 * whole["reduce-scatter buffer"]
    assert frozen.get("gradients before reduction", 0) < 0.02 * whole["gradients before reduction"]


def test_what_is_not_predicted_is_said():
    with pytest.raises(BadInput, match="lora with experts is not predicted"):
        predict.memory(shape("mixtral-8x7b"), Job(1, 64, lora=4))
