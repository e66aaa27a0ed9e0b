import pytest
import torch

from gpucourse.catalog import gpt, llama
from gpucourse.errors import BadInput
from gpucourse.models import Transformer
from gpucourse.models.decoding import cache, generate, step
from gpucourse.predict.kv_cache import kv_bytes_per_token

SHAPES = [gpt("gpt", 3, 48, 4, vocab=61, context=40),
          llama("grouped", 3, 48, 6, 2, 80, vocab=61, context=40),
          llama("wide", 3, 48, 6, 2, 80, vocab=61, context=40, head_dim=10, qk_norm=True, qkv_bias=True),
          llama("multi-query", 2, 48, 6, 1, 80, vocab=61, context=40)]
each = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def built(shape):
    torch.manual_seed(3)
    model = Transformer(shape).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that logits differ by more than rounding
    return model, torch.randint(shape.vocab, (3, 11))  # [B, T]


@each
def test_the_same_tokens_and_logits_with_and_without_a_cache(shape):
    model, prompt = built(shape)
    cached = cache(model, 3, 40)
    said = generate(model, prompt, 25, cached)
    assert torch.equal(said, generate(model, prompt, 25))
    assert said.unique().numel() > 3
    assert cached.length == 11 + 24  # the last token is said and never read
    whole = torch.cat([prompt, said], dim=1)
    with torch.no_grad():
        assert torch.allclose(step(model, said[:, -1:], cached), model(whole)[:, -1], rtol=0, atol=1e-12)


@each
def test_a_prompt_in_pieces_is_the_prompt(shape):
    model, prompt = built(shape)
    cached = cache(model, 3, 20)
    for piece in prompt.split((4, 1, 6), dim=1):
        logits = step(model, piece, cached)
    with torch.no_grad():
        assert torch.allclose(logits, model(prompt)[:, -1], rtol=0, atol=1e-12)


@each
def test_bytes_are_the_formulas(shape):
    cached = cache(Transformer(shape), 5, 33)
    assert cached.nbytes == 5 * 33 * kv_bytes_per_token(shape, "fp32")
    assert cached.room == 33
    assert cache(Transformer(shape).bfloat16(), 5, 33).nbytes == 5 * 33 * kv_bytes_per_token(shape, "bf16")


def test_values_that_cannot_be_used():
    model, prompt = built(SHAPES[1])
    with pytest.raises(BadInput, match="room for 12 tokens; 11 are stored and 2 more"):
        cached = cache(model, 3, 12)
        step(model, prompt, cached)
        step(model, prompt[:, :2], cached)
    with pytest.raises(BadInput, match="tokens is 41; grouped takes at most 40"):
        cache(model, 1, 41)
    with pytest.raises(BadInput, match="batch is 0"):
        cache(model, 0, 4)
    with pytest.raises(BadInput, match="new is 0"):
        generate(model, prompt, 0)
