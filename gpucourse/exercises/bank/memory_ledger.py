"""Check of 01.3: two instants of the ledger of a drawn model."""

import random

from gpucourse.catalog import Job, gpt
from gpucourse.exercises.expect import expect_close, expect_equal
from gpucourse.predict import memory, parameters


def run_step_ledger(function):
    """Random shapes against the closed form of the package, which is held against dry runs elsewhere."""
    draw = random.Random()
    for turn in (1, 2, 3):
        model, job, ledger = drawn(draw)
        got = function(parameters(model).total, job.tokens, model.layers, model.hidden, model.ffn, model.heads,
                       model.vocab)
        yield expect_equal(f"model {turn}: a dict with \"loss\" and \"step\"",
                           sorted(got) if isinstance(got, dict) else got, ["loss", "step"])
        for instant, note in (
                ("loss", "Weights and moments, the batch, all blocks, what the head saved, and what its backward "
                         "makes. Has any gradient of a weight been made at this instant?"),
                ("step", "Everything that is a parameter's: how many lists of N elements are alive inside step()?")):
            yield expect_close(f"model {turn}, {instant}: within 1 %", got[instant] / ledger.total(instant), 1.0,
                               atol=0.01, note=note)


def drawn(draw: random.Random):
    """(model, job, ledger): tokens enough that the logits lead at the loss, and so few that one list of N elements more
    is seen there."""
    while True:
        heads = draw.randint(2, 12)
        model = gpt("drawn", draw.randint(2, 40), heads * 8 * draw.randint(4, 12), heads,
                    vocab=draw.randint(5_000, 60_000))
        model = model.but(ffn=draw.choice((2, 3, 4)) * model.hidden + 64 * draw.randint(0, 3))
        job = Job(draw.randint(8, 24), draw.randint(500, 1024))
        ledger = memory(model, job)
        if 4 * parameters(model).total > 0.03 * ledger.total("loss"):
            return model, job, ledger


def broken_ledger(step_bytes=20, loss_bytes=12, logits=3, width=32):
    def step_ledger(N, n, layers, h, f, a, V):
        blocks = layers * n * (width * h + 8 * f + 16 + 4 * a)
        return {"loss": loss_bytes * N + 16 * n + blocks + n * (8 * h + 8) + 4 * logits * n * V,
                "step": step_bytes * N + 16 * n}
    return step_ledger
