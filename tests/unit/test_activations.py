"""What blocks save, counted and by formula; plans of recomputation; losses that are given; lesson 03's pictures."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gpucourse import dryrun, models, predict
from gpucourse.catalog import Job, gpt, llama, shape
from gpucourse.errors import BadInput
from gpucourse.exercises.bank.activations_placement import plan_peak
from gpucourse.live.over_a_step import OverAStep
from gpucourse.live.stacks import Stacks
from gpucourse.live.tradeoff import Tradeoff, Way
from gpucourse.measure import LiveStorages
from gpucourse.measure.block_cost import block_cost
from gpucourse.measure.saved_tensors import SavedTensors
from gpucourse.measure.trace import Trace
from gpucourse.models import losses, recompute, transformer
from gpucourse.predict import activations

SMALL, JOB = gpt("small", layers=3, hidden=32, heads=2, vocab=200, context=64), Job(2, 32, foreach=False, fused=True)


def drawn(seed: int):
    draw = random.Random(seed)
    kv_heads = draw.randint(1, 3)
    heads, head_size = kv_heads * draw.randint(1, 3), 2 * draw.randint(2, 8)
    common = dict(layers=1, hidden=heads * head_size, heads=heads, vocab=100, context=128)
    ffn = draw.randint(20, 200)
    if seed % 2:
        return gpt("gpt", ffn=ffn, **common)
    wide = dict(head_dim=head_size + 4, qk_norm=True, qkv_bias=True) if seed % 4 == 2 else {}
    return llama("llama", kv_heads=kv_heads, ffn=ffn, **common, **wide)


def counted(of, word: str, dtype: torch.dtype, rows: int, seq: int) -> tuple[int, int]:
    """Bytes that a block holds for backward: by hooks, and as what forward has left alive besides its result."""
    block = transformer.Block(of).to(dtype)
    rotary = transformer.rotary_tables(seq, of.head_size) if of.positions == "rope" else None
    x = torch.randn(rows, seq, of.hidden, dtype=dtype, requires_grad=True)
    with LiveStorages() as live:
        live.own(block, *(rotary or ()))
        before = live.live
        live.own(x)
        with SavedTensors(block, *(rotary or ())) as saved:
            run = block if word == "none" else recompute.recomputed(block.forward, word, saved.note)
            y = run(x, rotary)
        return saved.bytes, live.live - before - y.nbytes


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("word", activations.WORDS)
@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_block_saves_what_the_formula_says_to_the_byte(seed, word, precision, dtype):
    of, rows, seq = drawn(seed), 1 + seed % 3, 9 + 5 * seed
    by_hooks, alive = counted(of, word, dtype, rows, seq)
    formula = activations.saved(of, precision, word).at(activations.dims(of, rows * seq))
    assert by_hooks == formula
    # In bf16 RMSNorm keeps an fp32 copy of the input, and the input itself, which the test holds, is free to go.
    unasked = 2 * rows * seq * of.hidden if (precision, word, of.norm) == ("bf16", "none", "rmsnorm") else 0
    assert by_hooks == alive - unasked


@pytest.mark.parametrize("word", activations.WORDS)
@pytest.mark.parametrize("precision", activations.WIDTHS)
def test_the_closed_form_of_a_step_counts_the_same_blocks(precision, word):
    for of in (SMALL, llama("llama", 3, 32, 4, 2, 88, vocab=200, context=64)):
        job = Job(2, 32, precision, recompute=word)
        shallow, deep = (predict.memory(of.but(layers=layers), job) for layers in (3, 4))
        states = [sum(ledger.states().values()) - ledger.states()["gradients"] for ledger in (shallow, deep)]
        grown = deep.total("loss") - shallow.total("loss") - (states[1] - states[0])
        assert grown == activations.saved(of, precision, word).at(activations.dims(of, 64))


def test_words_and_precisions_that_are_not_known_are_said():
    with pytest.raises(BadInput, match="recompute 'some' is not known; .*none, op, full"):
        activations.saved(SMALL, "fp32", "some")
    with pytest.raises(BadInput, match="precision 'fp8' is not known; .*fp32, bf16"):
        activations.saved(SMALL, "fp8")
    with pytest.raises(BadInput, match="the plan has 2 words for 3 blocks"):
        recompute.place(models.Transformer(SMALL), ["none", "full"])
    with pytest.raises(BadInput, match="recompute 'ful' is not known; did you mean full"):
        recompute.place(models.Transformer(SMALL), ["none", "full", "ful"])


def gradients(model, tokens):
    model.zero_grad()
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("change", [
    lambda model: recompute.place(model, ["op", "none", "full"]),
    lambda model: recompute.place(recompute.place(model, ["full"] * 3), ["op"] * 3),
    lambda model: recompute.segments(model, 2),
], ids=["a word each", "one plan after another", "segments"])
def test_recomputation_changes_no_gradient(change):
    model = models.Transformer(SMALL).double()
    tokens = torch.randint(200, (2, 32))
    plain = gradients(copy.deepcopy(model), tokens)
    assert (gradients(change(model), tokens) - plain).abs().max() < 1e-14


def test_a_later_plan_replaces_an_earlier_one():
    model = recompute.place(models.Transformer(SMALL), ["full"] * 3)
    recompute.place(model, ["none", "full", "none"])
    calls = []
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients(model, torch.randint(200, (2, 32)))
    assert len(calls) == 4  # three forward, one again


def test_a_given_loss_is_the_loss_of_the_training():
    plain, given = models.training(SMALL, JOB), models.training(SMALL, JOB)
    losses.with_loss(given, lambda hidden, weight, targets: F.cross_entropy(hidden @ weight.T, targets))
    assert given.model.head.weight is given.model.embedding.weight
    tokens = torch.randint(200, (2, 32))
    for training in (plain, given):
        training.model.double()
        training.loss(tokens, tokens.roll(-1)).backward()
    for a, b in zip(plain.model.parameters(), given.model.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() < 1e-14


def test_the_costs_of_a_block_give_the_peaks_of_a_chain_of_blocks():
    draw = random.Random(3)
    shapes = [gpt("wide", 1, 32, 2, ffn=32 * draw.randint(1, 20)) for _ in range(5)]
    with dryrun.fake():
        blocks, x = [transformer.Block(of) for of in shapes], torch.randn(2, 20, 32)
        costs = [block_cost(block, x, again=True) for block in blocks]
        for plan in (["none"] * 5, ["full"] * 5, ["full", "none", "full", "none", "none"]):
            for _ in range(2):  # the second time gradients exist
                leaf = x.detach().requires_grad_()
                with LiveStorages() as live:
                    live.own(*blocks, leaf)
                    before, y = live.live - leaf.nbytes, leaf
                    for block, word in zip(blocks, plan, strict=True):
                        y = block(y) if word == "none" else checkpoint(block, y, use_reentrant=False)
                    loss = (y * 1).sum()
                    del y
                    loss.backward()
            assert live.peak - before == pytest.approx(plan_peak(costs, plan), rel=1e-3)


def test_a_trace_has_the_peak_and_falls_again():
    with Trace() as traced:
        traced.mark("start")
        made = torch.ones(1000) + 1
        del made
        torch.ones(1)
    assert max(traced.points) == traced.peak >= 4000 > traced.points[-1]
    assert traced.marks == [(0, "start")]


def test_saved_tensors_count_a_storage_once_and_leave_out_what_is_given():
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    with SavedTensors(weight) as saved:
        y = (x @ weight) + (x @ weight.T).tanh()
    assert saved.bytes == x.nbytes + 4 * 4 * 8  # x for both products, and tanh's result
    assert saved.shapes == [((4, 8), x.nbytes), ((4, 8), 4 * 4 * 8)]
    y.sum().backward()


@pytest.mark.parametrize("picture", [
    OverAStep({"plain": [0, 5 << 20, 1 << 20], "again": [0, 2 << 20, 1 << 20]}, "One is higher", "dry run"),
    Tradeoff([Way("plain", 5e7, 1, 1, 1), Way("again", 3e7, 1.3, 1.2, 1.4)], "Left and up", "cpu"),
    Stacks({"8k": {"blocks": 3e10, "loss": 1e10}}, "Two parts", "computed", ("a card", 5e10)),
], ids=lambda picture: type(picture).__name__)
def test_pictures_are_small_and_say_their_title(picture):
    png = picture._repr_png_()
    assert png.startswith(b"\x89PNG") and len(png) < 60_000
    assert str(picture).startswith(picture.title)


def test_the_8b_figures_of_others_are_near_the_formula():
    large = shape("llama-3.1-8b")
    one = activations.saved(large, "bf16").at(activations.dims(large, 32768))
    assert one / (2 * 32768 * large.hidden) == pytest.approx(28, rel=0.1)
    assert (large.layers * one + 4 * 32768 * large.vocab) / 2**30 == pytest.approx(240, rel=0.2)
