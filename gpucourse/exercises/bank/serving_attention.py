"""Check of 06.2: the attention of one layer over what is kept, piece by piece beside the whole."""

import random

from gpucourse.catalog import llama
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal

PIECES = {
    "a prompt": "Without a past this is causal attention: token t sees itself and what came before.",
    "one more token": "It stands behind the past: which rows of cos and sin are its own? And it sees every key, while "
                      "is_causal counts from the first.",
    "several more": "Token t of these sees past + t + 1 keys. is_causal counts from the first key; with no mask a "
                    "token sees what comes after it.",
    "the last token": "The past now has several pieces: are all of them in what you keep?",
}


def run_attend(function):
    """The values piece by piece, what is kept, and how many tokens pass through the projections."""
    import torch

    from gpucourse.models.transformer import Attention, rotary_tables

    heads = random.choice((4, 6, 8))
    what = llama("drawn", 1, 8 * heads, heads, heads // 2, 64, vocab=32, context=64)
    attention = Attention(what).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.4)
    rotary = tuple(table.double() for table in rotary_tables(64, 8))
    sizes = (random.randint(3, 9), 1, random.randint(2, 6), 1)
    x = torch.randn(2, sum(sizes), what.hidden, dtype=torch.float64)
    passed = []
    with torch.no_grad():
        whole = attention(x, tuple(table[:x.shape[1]] for table in rotary))
        attention.k.register_forward_hook(lambda module, inputs, result: passed.append(inputs[0].shape[1]))
        kept, begin = None, 0
        for size, name, note in zip(sizes, PIECES, PIECES.values(), strict=False):
            answer = function(attention, x[:, begin:begin + size], rotary, kept)
            yield expect_equal(f"{name}: a result and what is kept",
                               (len(answer), len(answer[1])) if isinstance(answer, tuple) else answer, (2, 2),
                               note="Return y and the pair of keys and values.")
            y, kept = answer
            yield expect_close(name, y, whole[:, begin:begin + size], atol=1e-9, note=note)
            begin += size
            place = (2, what.kv_heads, begin, 8)
            yield expect_equal(f"{name}: the shapes kept", [tuple(t.shape) for t in kept], [place, place],
                               note="Keys and values of all tokens so far, and of the kv heads only: sharing among the "
                                    "query heads is made when they are used.")
    yield expect_at_most("tokens through the key projection", sum(passed), sum(sizes), "tokens",
                         note="Some passed more than once. What is kept for, if not to be computed once?")


def broken_attend(positions=True, mask="right", expand=False, again=False):
    def attend(attention, x, rotary, kept):
        import torch
        import torch.nn.functional as F

        from gpucourse.models.transformer import rotate

        B, T, _ = x.shape
        past = 0 if kept is None else kept[0].shape[2]
        q, k, v = (p(x).view(B, T, -1, attention.head_size).transpose(1, 2)
                   for p in (attention.q, attention.k, attention.v))
        if again:
            attention.k(x)
        rows = slice(past, past + T) if positions else slice(T)
        q, k = (rotate(t, rotary[0][rows], rotary[1][rows]) for t in (q, k))
        if expand:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        if kept is not None:
            k, v = torch.cat((kept[0], k), dim=2), torch.cat((kept[1], v), dim=2)
        allowed = torch.ones(T, past + T, dtype=torch.bool).tril(past)
        how = {"right": {"attn_mask": allowed}, "causal": {"is_causal": True},
               "none": {"is_causal": past == 0}}[mask]
        y = F.scaled_dot_product_attention(q, k, v, **how, enable_gqa=not expand)
        return attention.out(y.transpose(1, 2).reshape(B, T, -1)), (k, v)
    return attend
