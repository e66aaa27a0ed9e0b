"""The closed form against the dry run over layouts drawn at random: no coefficient may have been fitted to a case."""

import random
from statistics import median

import pytest

from gpucourse import predict
from gpucourse.catalog import Job, Layout, gpt, llama
from gpucourse.catalog.halves import in_halves
from gpucourse.dryrun.ledger import step_ledger
from gpucourse.dryrun.memory import told
from gpucourse.evidence import STATES
from gpucourse.predict.memory import memory_of_rank
from gpucourse.predict.step import Step

RECOMPUTES = ("none", "attention", "op", "op-2", "full", "layer-2")
SCALARS = 16  # the loss, its gradient, its running sum
TWO = ("interleaved", "zbv", "dualpipe")
KINDS = {
    "one device": lambda draw: Layout(),
    "FSDP": lambda draw: Layout(dp=draw.choice((2, 3, 8)), shard="zero3", reshard=draw.choice(("always", "never"))),
    "TP": lambda draw: Layout(tp=2, vocab_parallel_loss=draw.random() < 0.5),
    "TP+SP": lambda draw: Layout(tp=2, sequence_parallel=True, vocab_parallel_loss=draw.random() < 0.5),
    "PP": lambda draw: Layout(pp=2, schedule=draw.choice(("gpipe", "1f1b"))),
    "FSDP × TP": lambda draw: Layout(dp=2, shard="zero3", tp=2),
    "FSDP × TP+SP": lambda draw: Layout(dp=4, shard="zero3", tp=2, sequence_parallel=True,
                                        vocab_parallel_loss=draw.random() < 0.5),
    "FSDP × PP": lambda draw: Layout(dp=2, shard="zero3", pp=2, schedule=draw.choice(("gpipe", "1f1b")),
                                     reshard=draw.choice(("always", "never"))),
    "PP, two stages a rank": lambda draw: Layout(pp=2, schedule=draw.choice(TWO), chunks=2),
    "PP, backward in halves": lambda draw: Layout(pp=2, schedule="zero-bubble", tp=draw.choice((1, 2))),
    "FSDP × PP, two stages a rank": lambda draw: Layout(dp=2, shard="zero3", reshard="never", pp=2,
                                                        schedule=draw.choice(TWO), chunks=2),
    "TP × PP": lambda draw: Layout(tp=2, sequence_parallel=draw.random() < 0.5, pp=2),
}


def drawn(seed: int, count: int):
    draw = random.Random(seed)
    cases = []
    for i in range(count):
        layout = list(KINDS.values())[i % len(KINDS)](draw)
        hidden = draw.choice((32, 64, 96, 160))
        depths = (2, 2, 3, 4) if layout.chunks == 1 else (4, 4, 5, 8)
        common = dict(layers=draw.choice(depths), hidden=hidden, heads=4, vocab=draw.choice((256, 1000, 4096)),
                      context=256, ffn=draw.choice((2, 3, 4)) * hidden, tied=draw.random() < 0.5)
        model = gpt("gpt", **common) if draw.random() < 0.5 else llama("llama", kv_heads=draw.choice((2, 4)), **common)
        halved = in_halves(Job(layout=layout))  # which goes with little else
        parts = 0 if layout.sequence_parallel or halved else draw.choice((0, 0, 3))
        job = Job(draw.choice((1, 2, 4)), draw.choice((16, 64, 128)), layout=layout, chunked_loss=parts,
                  precision=draw.choice(("fp32", "bf16", "bf16-autocast", "fp16-autocast")),
                  recompute=draw.choice(RECOMPUTES[:2] if halved else RECOMPUTES),
                  optimizer=draw.choice(("adamw", "momentum")),
                  accumulate=draw.choice((4, 6)) if layout.chunks > 1 else draw.choice((3, 4)) if layout.pp > 1
                  else draw.choice((1, 1, 2)))
        cases.append((model, job, draw.randrange(layout.pp)))
    return cases


def held_for_backward(model, job) -> int:
    step = Step(model, job)
    return step.kept_below[-1] + step.beside + 16 * job.tokens


def off_by(model, job, rank) -> float:
    """How far the predicted peak is off, as a fraction; states, and what blocks hold for backward, must be equal."""
    computed = memory_of_rank(model, job, rank) if job.layout.pp > 1 else predict.memory(model, job)
    ledger = step_ledger(model, job, rank)
    table = told({instant: dict(at) for instant, at in ledger.at.items()}, job)
    assert computed.states() == {kind: table["step"].get(kind, 0) for kind in STATES}
    if job.layout.pp == 1 and job.layout.shard == "none":
        extra = ledger.began["last block"]["activations"] - held_for_backward(model, job)
        assert 0 <= extra <= SCALARS
    peak = max(sum(at.values()) for at in table.values())
    return abs(computed.peak / peak - 1)


def judge(seed: int, count: int) -> None:
    cases = drawn(seed, count)
    off = [off_by(*case) for case in cases]
    worst = max(range(count), key=off.__getitem__)
    says = f"seed {seed}: median {100 * median(off):.4f} %, worst {100 * off[worst]:.4f} % at {cases[worst]}"
    print(says)
    assert median(off) <= 0.005 and off[worst] <= 0.02, says


def test_sixty_layouts():
    judge(seed=20261130, count=60)


@pytest.mark.slow
def test_another_seed_gives_the_same_verdict():
    judge(seed=1, count=60)
