"""One training step measured inside a rank, by what the CPU allocator did there."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function

from gpucourse.evidence import Memory
from gpucourse.measure.fresh import PREFIX, instants, warm_up
from gpucourse.measure.live_storages import storages_of, tensors_of

BEFORE = 2  # unobserved steps: the optimizer's state comes with the first, DDP arranges its buckets after it
OBSERVED, AT_MOST = 5, 80  # steps
SCALARS = 64  # bytes: the loss, still there at the end of a step; what gloo frees is larger by far
Event = tuple[int, str, int]  # nanoseconds, name, bytes allocated (or freed, negative)


def memory(build, *args) -> Memory:
    """Bytes by category at each instant of a training step, on the CPU of the rank that calls this.

    build: `build(*args)` returns a training as `models.training` does: called it takes one step, and it has `.model`,
    `.optimizer`, `.job` and `.follow(mark)`. What rises and falls within a step are the profiler's allocator events;
    they are anchored at the end of the step, before `zero_grad`, at the storages that the rank then holds. `also` has
    the gradients that the optimizer finds.

    The profiler does not see what gloo's own threads free. A step in which they freed something seems to begin with
    less than it had; so steps are taken until on every rank one begins with no less than the states, which are always
    there, and the one that begins with most is reported.
    """
    warm_up()
    training = build(*args)
    for _ in range(BEFORE):
        training()
    training.follow(say)
    found: list[int] = []
    hook = register_optimizer_step_pre_hook(lambda *_: found.append(bytes_of(gradients_of(training.model))))
    steps = [observed(training) for _ in range(OBSERVED)]
    fixed = states(training)
    always = sum(fixed.values())
    held = always + found[-1] + 16 * training.job.tokens  # and tokens and targets, int64
    while len(steps) < AT_MOST and not on_all(beginning(held, best(held, steps)) >= always - SCALARS):
        steps.append(observed(training))
    hook.remove()
    return Memory(instants(anchored(held, steps), fixed), "measured", "cpu", "allocator events of one rank",
                  {"gradients in step()": found[-1]})


def most_allocated(call: Callable[[], object]) -> int:
    """The most bytes that `call()` had allocated at once on this rank's CPU, above what there was; meta has none."""
    warm_up()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    return max(accumulate((size for _, name, size in in_order(seen) if name == "[memory]"), initial=0))


def anchored(held: int, steps: Sequence[list[Event]]) -> list[Event]:
    """Of several steps that all end with `held` bytes the one that begins with most, and that beginning as an event."""
    taken = best(held, steps)
    return [(0, "[memory]", beginning(held, taken)), *taken]


def best(held: int, steps: Sequence[list[Event]]) -> list[Event]:
    return max(steps, key=lambda events: beginning(held, events))


def beginning(held: int, events: list[Event]) -> int:
    """Bytes with which a step began that ended with `held`."""
    return held - sum(size for *_, size in events)


def on_all(true: bool) -> bool:
    """Whether it is true on every rank."""
    if not dist.is_initialized():
        return true
    each = torch.tensor(int(true))
    dist.all_reduce(each, dist.ReduceOp.MIN)
    return bool(each)


def observed(training) -> list[Event]:
    """The allocator's events of one step, and its marks, up to the end of step()."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        say("forward")
        training()
    events = in_order(seen)
    return events[:next(place for place, (_, name, _) in enumerate(events) if name == PREFIX + "end")]


def in_order(seen: profile) -> list[Event]:
    """What the allocator did, and the marks, which have no bytes."""
    return sorted(((e.start_ns(), e.name(), e.nbytes() if e.name() == "[memory]" else 0)
                   for e in seen.profiler.kineto_results.events()
                   if e.name() == "[memory]" or e.name().startswith(PREFIX)), key=lambda event: event[0])


def say(instant: str) -> None:
    with record_function(PREFIX + instant):
        pass


def states(training) -> dict[str, int]:
    """Bytes of weights (buffers too) and of the optimizer's state that this rank holds."""
    kinds: dict[str, list[torch.Tensor]] = {"weights": [], "optimizer": []}
    optimizer = getattr(training.optimizer, "optim", training.optimizer)  # ZeroRedundancyOptimizer wraps its own
    for tensor, kind in (*tensors_of(training.model), *tensors_of(optimizer)):
        if kind in kinds:
            kinds[kind].append(tensor)
    return {kind: bytes_of(tensors) for kind, tensors in kinds.items()}


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`, on this rank."""
    return sum({s.data_ptr(): s.nbytes() for tensor in tensors for s in storages_of(tensor)}.values())
