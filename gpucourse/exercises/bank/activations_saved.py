"""Checks of 03.1: what a block saves, against what the hooks count."""

import random

from gpucourse.catalog import llama
from gpucourse.exercises.expect import expect_equal


def run_llama_saves(function):
    """Random widths against what the hooks count in the block itself."""
    import torch

    from gpucourse.measure.saved_tensors import SavedTensors
    from gpucourse.models import recompute, transformer

    notes = {
        "none": "Go through the block operation by operation: which tensors does each derivative need, and which of "
                "them were counted for an earlier operation already?",
        "op": "Count what is *made* by each product and by attention, and add the block's input.",
        "full": "Backward finds the block's input, and nothing else.",
    }
    draw = random.Random()
    for turn in (1, 2):
        kv_heads = draw.randint(1, 3)
        heads = kv_heads * draw.randint(2, 3)  # fewer keys than queries, always
        hidden = heads * 2 * draw.randint(3, 9)
        of = llama("drawn", 1, hidden, heads, kv_heads, draw.randint(40, 200))
        rows, seq = draw.randint(2, 3), draw.randint(9, 30)
        for word in ("none", "op", "full"):
            block = transformer.Block(of)
            rotary = transformer.rotary_tables(seq, of.head_size)
            x = torch.randn(rows, seq, hidden, requires_grad=True)
            with SavedTensors(block, *rotary) as held:
                run = block if word == "none" else recompute.recomputed(block.forward, word, held.note)
                kept = run(x, rotary)
            got = function(rows * seq, hidden, of.kv_hidden, of.ffn, heads, word)
            yield expect_equal(f"block {turn}, recompute {word}: bytes", got, held.bytes, note=notes[word])
            del kept


def broken_saves(norms=3, silu=4, keys=2, stream=1, statistics=4, sums=True):
    def llama_saves(n, h, k, f, a, recompute):
        if recompute == "full":
            return 4 * n * h * stream
        if recompute == "op":
            return 4 * n * (h + (4 if sums else 2) * h + keys * k + 2 * f + a)
        return n * (2 * (norms * 4 * h + 4) + 4 * (2 * h + keys * k) + statistics * a + 4 * silu * f)
    return llama_saves
