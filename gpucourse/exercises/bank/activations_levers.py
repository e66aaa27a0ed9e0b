"""Checks of 03.6 and 03.8: levers ranked, and which of them moves a peak."""

import math
import random

from gpucourse.catalog import GiB, Job, Shape, published, shape
from gpucourse.evidence import INSTANTS
from gpucourse.exercises.expect import expect_equal
from gpucourse.exercises.kinds import Misconception, Pick, Quantity, one_of
from gpucourse.predict import memory


def torchtune() -> tuple[tuple[float, float], dict[str, tuple[float, float]]]:
    """Steps of torchtune's table as levers on the packed, compiled run: (GiB, ms a step of 2 × 4096 tokens)."""
    rows = {row["technique"]: row for row in published("memory") if row["case"] == "A06"}
    names = ["+ compile", "+ chunked cross-entropy", "+ activation checkpointing", "+ optimizer in backward",
             "+ activation offload", "+ 8-bit AdamW"]
    points = [(float(rows[name]["gib"]), 2 * 4096 / float(rows[name]["tokens_per_second_per_gpu"]) * 1e3)
              for name in names]
    start = points[0]
    levers = {}
    for name, before, after in zip(names[1:], points, points[1:], strict=False):
        levers[name] = (start[0] - before[0] + after[0], start[1] - before[1] + after[1])
    return start, levers


def ranked(plain, levers) -> list[str]:
    saved = {name: plain[0] - peak for name, (peak, _) in levers.items() if peak < plain[0]}
    cost = {name: levers[name][1] - plain[1] for name in saved}
    return sorted(saved, key=lambda name: (cost[name] > 0, -saved[name] / (cost[name] if cost[name] > 0 else 1)))


def run_rank(function):
    draw = random.Random()
    for turn in (1, 2, 3):
        plain = draw.uniform(40, 70), draw.uniform(300, 900)
        changes = {"recompute": (draw.uniform(10, 20), draw.uniform(60, 150)),
                   "loss in parts": (draw.uniform(4, 9), -draw.uniform(2, 20)),
                   "fused": (draw.uniform(0.5, 3), -draw.uniform(21, 60)),
                   "offload": (draw.uniform(21, 30), draw.uniform(500, 900)),
                   "small state": (draw.uniform(1, 3), draw.uniform(1, 4)),
                   "compile, unluckily": (-draw.uniform(1, 4), -draw.uniform(10, 40))}
        names = list(changes)
        draw.shuffle(names)
        levers = {name: (plain[0] - changes[name][0], plain[1] + changes[name][1]) for name in names}
        wanted = ranked(plain, levers)
        got = function(plain, dict(levers))
        yield expect_equal(f"table {turn}: the levers that save memory, and only those",
                           sorted(got) if isinstance(got, list | tuple) else got, sorted(wanted),
                           note="One lever takes more memory than it gives. One saves some and is faster: it belongs.")
        yield expect_equal(f"table {turn}: the free ones first, by what they save",
                           list(got)[:2], wanted[:2],
                           note="A lever that costs no time, or saves some, comes before all others: a ratio with a "
                                "cost of zero or below ranks it anywhere.")
        yield expect_equal(f"table {turn}: the rest, by GiB for a millisecond", list(got)[2:], wanted[2:],
                           note="Not the most bytes and not the least time: bytes for each millisecond.")
    plain, levers = torchtune()
    yield expect_equal("torchtune's table (published)", list(function(plain, dict(levers))), ranked(plain, levers),
                       note="Look at the signs: which of the published steps saved memory and gained time?")


def by_key(key, every=False):
    def rank(plain, levers):
        saved = {name: plain[0] - peak for name, (peak, _) in levers.items()}
        cost = {name: time - plain[1] for name, (_, time) in levers.items()}
        names = [name for name in levers if every or saved[name] > 0]
        return sorted(names, key=lambda name: key(saved[name], cost[name]), reverse=True)
    return rank


CASES = {
    "A": (shape("gpt2-medium"), Job(16, 1024)),
    "B": (shape("gpt2-xl"), Job(1, 1024)),
    "C": (shape("gpt2"), Job(16, 1024, recompute="full")),
    "D": (shape("gpt2").but(vocab=256), Job(16, 1024)),
}
LEVERS = ("recompute", "in parts", "fused")


def peak_with(lever: str, of: Shape, job: Job) -> float:
    """The peak of the ledger with one lever pulled; `in parts` replaces the loss's three tensors by a part of them."""
    if lever == "recompute":
        return memory(of, job.but(recompute="full")).peak
    if lever == "fused":
        return memory(of, job.but(foreach=False, fused=True)).peak
    ledger, n, table = memory(of, job), job.tokens, 4 * of.vocab * of.hidden
    part = math.ceil(n / 32)
    loss = max(12 * part * of.vocab + table, 4 * part * of.vocab + 2 * table, 3 * table) - 12 * n * of.vocab
    return max(ledger.total("loss") + loss, *(ledger.total(i) for i in INSTANTS if i not in ("loss", "forward")))


def best_lever(name: str) -> str:
    return min(LEVERS, key=lambda lever: peak_with(lever, *CASES[name]))


WHY_NOT = {
    "recompute": "Recomputing lowers what the blocks hold. Is that most of what is alive at the largest instant, and "
                 "is there any of it left to lower?",
    "in parts": "Parts lower the loss and nothing else. Is the loss the largest instant by more than what the next one "
                "has?",
    "fused": "A fused optimizer lowers step(). Is the peak there?",
}


def lever_part(name: str) -> Pick:
    return one_of(WHY_NOT, lambda: best_lever(name))


def new_peak(name: str) -> Quantity:
    """GiB after the lever that lowers the peak most."""
    before, best = memory(*CASES[name]).peak, best_lever(name)
    less = {lever: peak_with(lever, *CASES[name]) / GiB for lever in LEVERS
            if lever != best and peak_with(lever, *CASES[name]) < 0.98 * before}
    return Quantity(expected=peak_with(best, *CASES[name]) / GiB, unit="GiB", within=2e-3, misconceptions=(
        Misconception(before / GiB, "That is the peak before: no lever is pulled, or one that does not move it."),
        *(Misconception(peak, f"That is the peak with `{lever}`. Another lever leaves less.")
          for lever, peak in less.items())))
