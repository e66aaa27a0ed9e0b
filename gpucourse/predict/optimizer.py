"""The optimizer's state on one rank, on the device or, offloaded, in host memory."""

from collections.abc import Iterable
from math import ceil

from gpucourse.catalog.jobs import OPTIMIZERS
from gpucourse.predict.ledger import Line
from gpucourse.predict.step import Step
from gpucourse.predict.tensors import count, share

ADAMW_8BIT = "block-wise 8-bit optimizers, arXiv 2110.02861; bitsandbytes, Optimizer2State"
ZERO_OFFLOAD = "the step runs on the host, as in ZeRO-Offload, arXiv 2101.06840"
BLOCK, SMALLEST = 256, 4096  # elements that share a scale; elements from which a tensor's moments have 8 bits


def state(step: Step, instants: Iterable[str]) -> list[Line]:
    """Master weights, moments and step counts, wherever they are."""
    b, job, elements = step.bytes, step.job, step.all_elements("optimizer")
    each, parts = OPTIMIZERS[job.optimizer], []
    if b.master:
        parts.append(("master weights", f"{b.master} × {elements:,}", b.master * elements, ""))
    if job.optimizer == "adamw-8bit":
        large, scales, small = in_8_bits(step)
        text = f"2 × ({large:,} + 4 × {scales:,} scales + 4 × {small:,} of small tensors)"
        parts.append(("optimizer moments", text, 2 * (large + 4 * scales + 4 * small), ADAMW_8BIT))
    elif each:
        parts.append(("optimizer moments", f"{each} × {b.moments} × {elements:,}", each * b.moments * elements, ""))
    if job.optimizer == "adamw":
        tensors = len(list(step.all_trained.in_order(step.rank.layers)))
        parts.append(("optimizer step counts", f"4 × {tensors} tensors", 4 * tensors, ""))
    return [Line(name, "optimizer", text, dict.fromkeys(instants, size), source) for name, text, size, source in parts]


def in_8_bits(step: Step) -> tuple[int, int, int]:
    """Elements with 8-bit moments; their scales; elements of tensors too small for that, whose moments stay in fp32.

    A tensor counts by this rank's part of it; ZeRO-1 and 2 divide the sum evenly. No dry run can confirm this: the
    library's kernels need a GPU. Two tables of 256 values, which all tensors share, are left out.
    """
    large = scales = small = 0
    of, sharded = step.all_trained, step.sharded
    dense, others = of.among(step.rank.layers)
    all_ways = step.layout.replicas if step.layout.shard != "none" else 1
    expert_ways = step.expert_ways if step.layout.shard != "none" else 1
    for tensors, times, ways in ((of.ends, 1, all_ways), (of.dense, dense, all_ways), (of.common, others, all_ways),
                                 (of.experts, others, expert_ways)):
        each = 1 if sharded else ways  # what divides the sum, and not each tensor
        for tensor in tensors:
            elements = share((tensor,), ways) if sharded else count([tensor])
            if elements < SMALLEST:
                small += ceil(times * elements / each)
            else:
                large += ceil(times * elements / each)
                scales += ceil(times * ceil(elements / BLOCK) / each)
    return large, scales, small


def on_host(step: Step, instants: Iterable[str]) -> list[Line]:
    """What offload puts into host memory: the state, and copies of what the step there reads and writes."""
    b = step.bytes
    copies = [("gradients, copied there", b.gradients, step.all_elements("gradients"))]
    if not b.master:
        copies.append(("weights, updated there", b.weights, step.all_elements("weights")))
    return [*state(step, instants),
            *(Line(name, "host", f"{width} × {elements:,}", dict.fromkeys(instants, width * elements), ZERO_OFFLOAD)
              for name, width, elements in copies)]
