"""The time of a training step on one GPU, as an interval: compute, the pipeline's bubble, and traffic that waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpucourse.catalog.gpus import Gpu
from gpucourse.catalog.links import Link
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive, positive_int
from gpucourse.predict.compute import hardware_flops_per_token
from gpucourse.predict.traffic import Transfer, behind, exposed

# Of the best matrix product that a card was seen to do, the share that whole training steps reach. It describes the 28
# published runs on A100 and H100 that its test lists: 26 lie between the two, the others at 0.449 and 0.912. Attention
# counts in full here: with its masked half left out, long sequences spread them from 0.34.
REACHED = (0.45, 0.9)

# Achievable ÷ peak where nobody has measured it: A100 0.87, H100 0.80, B200 0.78; MI300X, 0.51, is the exception.
USUAL = 0.8


@dataclass(frozen=True)
class StepTime:
    """Seconds, each (low, high). tokens: what the step reads, on this GPU's share of the data."""

    tokens: int
    compute: tuple[float, float]
    bubble: tuple[float, float]
    waiting: tuple[float, float]

    @property
    def seconds(self) -> tuple[float, float]:
        parts = self.compute, self.bubble, self.waiting
        return sum(low for low, _ in parts), sum(high for _, high in parts)


def ceiling(on: Gpu, precision: str = "bf16") -> float:
    """FLOP/s of the best matrix product: measured in bf16 where known, others in ratio; or 0.8 of the peak."""
    dtype = precision.split("-")[0]
    if on.achievable_bf16:
        return on.achievable_bf16 * 1e12 * on.peak(dtype) / on.peak("bf16")
    return USUAL * on.peak(dtype)


def step_time(shape: Shape, tokens: int, seq: int, flops: float, recompute: str = "none", share: float = 1.0,
              bubble: float = 0.0, carried: Sequence[tuple[Transfer, Link]] = ()) -> StepTime:
    """How long a step over `tokens` takes, `flops` being the ceiling in FLOP/s: `ceiling(gpu)`, or one measured here.

    share: the part of the model's work that falls to this GPU, 1/(tensor · pipeline · context). bubble: of the total
    time. carried: transfers, each with the link that it goes over. The low end hides all traffic that something can
    hide, the high end none.
    """
    if not 0 <= bubble < 1:
        raise BadInput(f"bubble is {bubble}; it is a fraction of the total time, at least 0 and below 1")
    if not 0 < positive("share", share) <= 1:
        raise BadInput(f"share is {share}; it must be above 0 and at most 1")
    each = hardware_flops_per_token(shape, seq, "no-embedding", recompute).total
    work = positive_int("tokens", tokens) * share * each
    slow, fast = (work / (positive("flops", flops) * reached) for reached in REACHED)
    idle = bubble / (1 - bubble)
    waiting = behind(carried)
    hiding = {"forward": fast / 3, "backward": fast * 2 / 3}
    return StepTime(
        tokens=tokens, compute=(fast, slow), bubble=(fast * idle, slow * idle),
        waiting=(exposed(waiting, hiding), exposed(waiting, {})),
    )
