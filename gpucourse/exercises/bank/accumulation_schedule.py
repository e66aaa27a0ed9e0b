"""The check of 05.5: micro-batch and accumulation for a global batch under a memory budget."""

import random

from gpucourse.catalog import Job, gpt
from gpucourse.exercises.expect import expect_at_most, expect_equal
from gpucourse.exercises.results import Mark
from gpucourse.predict import memory


def planned(shape, job, global_batch: int, ranks: int, limit: int) -> tuple[int, int]:
    share = global_batch // ranks
    fitting = (b for b in range(share, 0, -1) if share % b == 0
               and memory(shape, job.but(micro_batch=b, accumulate=share // b)).peak <= limit)
    micro = next(fitting)
    return micro, share // micro


def budgets(draw: random.Random):
    """(what, shape, job, global batch, ranks, limit) for three cases, drawn at random."""
    heads = draw.choice((4, 8))
    model = gpt("drawn", draw.randint(2, 4), heads * 64, heads, vocab=draw.randint(8_000, 20_000), context=256)
    job, ranks = Job(seq=128, fused=True, foreach=False), draw.choice((2, 4))
    share = draw.choice((12, 24, 48))
    alone, accumulated = (memory(model, job.but(micro_batch=share // 2, accumulate=k)).peak for k in (1, 2))
    nearly = memory(model, job.but(micro_batch=share // 2 - 1, accumulate=3)).peak
    yield "a budget with room for nearly half", model, job, share * ranks, ranks, nearly
    between, all_of_it = (alone + accumulated) // 2, memory(model, job.but(micro_batch=share)).peak
    yield "a budget that half the share fits into by itself", model, job, share * ranks, ranks, between
    yield "a budget with room for all", model, job, share * ranks, ranks, all_of_it


def run_schedule(function):
    for what, model, job, global_batch, ranks, limit in budgets(random.Random()):
        got = function(model, job, global_batch, ranks, limit)
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(n, int) and n > 0 for n in got)):
            yield Mark(f"{what}: two whole numbers", False, f"got {got!r}", "Return (micro_batch, accumulate).")
            return
        micro, accumulate = got
        yield expect_equal(f"{what}: sequences in a step, all {ranks} ranks", micro * accumulate * ranks, global_batch,
                           note="micro-batch × accumulation × ranks is the global batch, exactly.")
        yield expect_at_most(f"{what}: peak", memory(model, job.but(micro_batch=micro, accumulate=accumulate)).peak,
                             limit, "bytes", note="With accumulation the gradients are alive during every forward "
                             "pass. Does the job that you asked the ledger about accumulate?")
        wanted, _ = planned(model, job, global_batch, ranks, limit)
        yield expect_equal(f"{what}: the largest piece that fits", micro >= wanted, True,
                           note="A larger micro-batch fits as well, and takes fewer passes.")


def schedule_by(accumulating=True, exact=True, ranked=True, largest=True):
    def schedule(shape, job, global_batch, ranks, limit):
        share = global_batch // ranks if ranked else global_batch
        sizes = [b for b in range(share, 0, -1) if not exact or share % b == 0]
        fitting = [b for b in sizes if memory(shape, job.but(
            micro_batch=b, accumulate=-(-share // b) if accumulating else 1)).peak <= limit]
        micro = fitting[0 if largest else -1]
        return micro, -(-share // micro)
    return schedule
