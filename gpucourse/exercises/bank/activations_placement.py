"""Checks of 03.4: a plan of checkpoints, run and measured."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from gpucourse.catalog import Shape
from gpucourse.exercises.expect import expect_at_most, expect_equal


@dataclass(frozen=True)
class Block:
    """What the learner's function is given of a block: bytes, and the operations of its forward."""

    saved: int
    input: int
    work: int
    flops: int


def plan_peak(blocks, plan) -> int:
    """The highest moment of backward above the start: what is held below a block, the block in full, its work."""
    held = [b.saved if word == "none" else b.input for b, word in zip(blocks, plan, strict=True)]
    return max(sum(held[:i]) + b.saved + b.work for i, b in enumerate(blocks))


def plan_price(blocks, plan) -> int:
    return sum(b.flops for b, word in zip(blocks, plan, strict=True) if word == "full")


def cheapest(blocks, budget: int, peak: Callable = plan_peak) -> list[str]:
    plans = [plan for plan in product(("none", "full"), repeat=len(blocks)) if peak(blocks, plan) <= budget]
    return list(min(plans, key=lambda plan: plan_price(blocks, plan), default=["full"] * len(blocks)))


def run_place(function):
    """Random rows of blocks; each plan is run, and its peak measured."""
    import torch

    from gpucourse import dryrun
    from gpucourse.measure.block_cost import block_cost
    from gpucourse.models.transformer import Block as Layer

    draw = random.Random()
    for turn in (1, 2, 3):
        # The last block is among the widest, so that bringing it back counts; the budget is a plan's own peak.
        widths = [32 * draw.randint(2, 24) for _ in range(6)] + [32 * draw.randint(24, 30)]
        shapes = [Shape("drawn", 1, 32, 2, 2, ffn, 64, 64) for ffn in widths]
        layers = [Layer(of) for of in shapes]
        x = torch.randn(draw.randint(2, 4), 40, 32)
        with dryrun.fake():
            costs = [block_cost(Layer(of), torch.randn(x.shape), again=True) for of in shapes]
        per_token = [2 * (4 * 32 * 32 + 2 * 32 * ffn) for ffn in widths]
        blocks = [Block(cost.saved, cost.input, cost.work, flops * x.shape[0] * 40)
                  for cost, flops in zip(costs, per_token, strict=True)]
        aim = ["full"] * 3 + ["none"] * 4
        budget = plan_peak(blocks, aim) + 64
        plan = function(blocks, budget)
        if not expect_equal("", sorted(set(plan or ["?"]) - {"none", "full"}), []).ok or len(plan) != len(blocks):
            yield expect_equal(f"row {turn}: a list with none or full for each block", plan, ["none"] * len(blocks))
            return
        measured = measured_peak(layers, plan, x)
        yield expect_at_most(f"row {turn}: measured peak above the start", measured, budget + 64, "bytes",
                             reason="by the budget",
                             note="The plan's own sum may be within it, the measurement is not. What is alive when a "
                                  "recomputed block comes back, and where in the row do the others still hold theirs?")
        yield expect_at_most(f"row {turn}: FLOPs computed again, relative to the cheapest plan that fits",
                             plan_price(blocks, plan) / max(plan_price(blocks, cheapest(blocks, budget)), 1), 1.0,
                             note="A cheaper plan fits. Which blocks could keep what they save without raising the "
                                  "largest instant?")


def measured_peak(layers, plan, x) -> int:
    """Live bytes at the highest moment of forward and backward above the start, gradients there already."""
    from torch.utils.checkpoint import checkpoint

    from gpucourse.measure import LiveStorages

    def run(x):
        for layer, word in zip(layers, plan, strict=True):
            x = checkpoint(layer, x, use_reentrant=False) if word == "full" else layer(x)
        return (x * 1).sum()

    run(x.detach().requires_grad_()).backward()
    x = x.detach().requires_grad_()
    with LiveStorages() as live:
        live.own(*layers, x)
        before = live.live - x.nbytes  # the first block's input is one of those that are counted
        run(x).backward()
    return live.peak - before


def by_claim(blocks, plan) -> int:
    return sum(b.saved if word == "none" else b.input for b, word in zip(blocks, plan, strict=True))


def last_first(blocks, budget):
    plan = ["none"] * len(blocks)
    for i in reversed(range(len(blocks))):
        if plan_peak(blocks, plan) > budget:
            plan[i] = "full"
    return plan
