"""The lessons' networks, their text, and the instants that a step passes."""

import pytest
import torch

from gpucourse import models
from gpucourse.catalog import Job, gpt, llama
from gpucourse.errors import BadInput
from gpucourse.evidence import INSTANTS
from gpucourse.predict import parameters

GPT = gpt("gpt", 3, 48, 4, vocab=300, context=32)
LLAMA = llama("llama", 3, 48, 4, 2, 128, vocab=300, context=32)
WIDE = LLAMA.but(head_dim=20, qk_norm=True, qkv_bias=True)
SHAPES = pytest.mark.parametrize("shape", [GPT, LLAMA, GPT.but(tied=False), LLAMA.but(tied=True), WIDE], ids=str)


@SHAPES
def test_parameter_count_is_the_predicted_one(shape):
    assert sum(p.numel() for p in models.Transformer(shape).parameters()) == parameters(shape).total


@SHAPES
def test_a_token_does_not_see_the_future(shape):
    torch.manual_seed(0)
    model = models.Transformer(shape).double().eval()
    tokens = torch.randint(300, (1, 20))
    other = tokens.clone()
    other[0, 12:] = torch.randint(300, (8,))
    ours, theirs = model(tokens), model(other)
    assert torch.equal(ours[:, :12], theirs[:, :12]) and not torch.equal(ours[:, 12:], theirs[:, 12:])


def test_rotation_depends_on_the_distance_alone():
    cos, sin = models.transformer.rotary_tables(64, 16)
    q, k = torch.randn(16), torch.randn(16)

    def score(i, j):
        def at(x, place):
            return models.transformer.rotate(x.view(1, 1, 1, 16), cos[place:place + 1], sin[place:place + 1])
        return (at(q, i) * at(k, j)).sum()

    assert torch.allclose(score(5, 3), score(45, 43), atol=1e-5)
    assert not torch.allclose(score(5, 3), score(5, 4), atol=1e-2)


@SHAPES
def test_recomputation_gives_the_same_loss_and_gradients(shape):
    results = []
    words = ("full", "op", "op-2", "attention")
    for changes in (dict(), *(dict(recompute=word) for word in words), dict(chunked_loss=5)):
        training = models.training(shape, Job(2, 32, optimizer="sgd", **changes))
        training.model.double()
        tokens = torch.arange(64).view(2, 32) % 300
        loss = training.loss(tokens, tokens.roll(-1, 1))
        loss.backward()
        results.append((loss.detach(), [p.grad for p in training.model.parameters()]))
    (one, ours), *others = results
    for other, theirs in others:
        assert torch.allclose(one, other, rtol=1e-14)
        assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(ours, theirs, strict=True))


def test_accumulation_equals_one_large_batch_in_loss():
    tokens = torch.arange(64).view(2, 32) % 300
    losses = []
    for accumulate in (1, 2):
        training = models.training(GPT, Job(2, 32, optimizer="sgd", accumulate=accumulate))
        losses.append(training.step(tokens, tokens.roll(-1, 1)).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-autocast", "fp16-autocast"])
def test_it_learns_in_every_precision(precision):
    training = models.training(GPT, Job(2, 32, precision=precision))
    tokens = torch.arange(64).view(2, 32) % 7
    losses = [training.step(tokens, tokens.roll(-1, 1)).item() for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3
    wanted = torch.bfloat16 if precision == "bf16" else torch.float32
    assert {p.dtype for p in training.model.parameters()} == {wanted}


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_passes_the_instants_in_their_order(recompute):
    training, seen = models.training(GPT, Job(1, 16, recompute=recompute)), []
    training.follow(seen.append)
    training()
    assert [instant for instant in seen if instant in INSTANTS] == list(INSTANTS)
    assert seen[:3] == ["forward", "loss", "last block"] and seen[-4:] == ["first block", "embedding", "step", "end"]
    assert len(seen) == 8  # and one block between the last and the first


def test_text_is_bytes_with_targets_one_later():
    tokens, targets = next(models.text.batches(4, 32, seed=3))
    assert tokens.shape == targets.shape == (4, 32) and tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1]) and int(tokens.max()) < models.text.VOCABULARY
    again, _ = next(models.text.batches(4, 32, seed=3))
    assert torch.equal(tokens, again)


def test_a_text_of_ones_own(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("abcdefghij" * 10)
    tokens, _ = next(models.text.batches(2, 8, path=path))
    assert set(tokens.flatten().tolist()) <= set(b"abcdefghij")
    with pytest.raises(BadInput, match="the text has 100 tokens; seq 200 needs at least 202"):
        next(models.text.batches(1, 200, path=path))
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        next(models.text.batches(1, 8, path=tmp_path / "absent.txt"))


def test_bad_set_ups_are_one_line():
    with pytest.raises(BadInput, match="seq 64 is longer than the context of gpt: 32"):
        models.training(GPT, Job(1, 64))
    with pytest.raises(BadInput, match="micro-batch is -1"):
        next(models.text.batches(-1, 8))
