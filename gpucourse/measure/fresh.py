"""One training step measured in a process of its own, by what the CPU allocator did.

Run as `python -m gpucourse.measure.fresh`: a cloudpickle of (build, args) comes on standard input from the process
that started it, one JSON object goes to standard output. Nothing that the dry run relies on is used here: the bytes
come from the profiler's allocator events, and the process's high-water mark stands beside them.
"""

import contextlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path

import psutil

PREFIX = "gpucourse instant: "
GRADIENT = "gpucourse gradient: "


def high_water() -> int:
    """The most memory that this process has had resident since `forget_high_water`, bytes."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def forget_high_water() -> int:
    """Start the high-water mark anew where the system can (Linux); what is resident now, bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def warm_up() -> None:
    """Load what a step loads by itself: threads, kernels, and the code of optimizer and profiler are not its memory."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        for dtype in (torch.float32, torch.bfloat16):
            layer = torch.nn.Linear(64, 64, dtype=dtype)
            x = torch.ones(64, 64, dtype=dtype)
            optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)
            torch.nn.functional.cross_entropy(layer(x), torch.zeros(64, dtype=torch.int64)).backward()
            optimizer.step()
    prof.profiler.kineto_results.events()


def storage_bytes(tensors) -> int:
    """Bytes of the distinct storages behind `tensors`."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def observe(build, args) -> dict:
    """Build, take one step unobserved and one observed; bytes by instant and category, and the high-water mark."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.profiler import ProfilerActivity, profile, record_function

    def say(text: str) -> None:
        with record_function(text):
            pass

    warm_up()
    start, optimizers = forget_high_water(), []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        built = build(*args)
        step = built if callable(built) else lambda: build(*args)
        found = register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.append(optimizer))
        if callable(built):
            step()  # the first step makes the optimizer's state
        found.remove()
        weights = [p for o in dict.fromkeys(optimizers) for group in o.param_groups for p in group["params"]]
        moments = [v for o in dict.fromkeys(optimizers) for s in o.state.values() for v in s.values()
                   if isinstance(v, torch.Tensor)]
        if hasattr(step, "model"):
            weights += [*step.model.parameters(), *step.model.buffers()]
        for p in dict.fromkeys(weights):
            if p.requires_grad and p.is_leaf:
                p.register_post_accumulate_grad_hook(lambda p: say(gradient_mark(p.grad.untyped_storage())))
        fixed = {"weights": storage_bytes(weights), "optimizer": storage_bytes(moments)}
        if hasattr(step, "follow"):
            step.follow(lambda instant: say(PREFIX + instant))
        else:
            register_optimizer_step_pre_hook(lambda *_: say(PREFIX + "step"))
        say(PREFIX + "forward")
        step()
        say(PREFIX + "end")
    events = [(e.start_ns(), e.name(), e.nbytes()) for e in prof.profiler.kineto_results.events()
              if e.name() == "[memory]" or e.name().startswith((PREFIX, GRADIENT))]
    return {"at": instants(events, fixed), "high_water": max(0, high_water() - start)}


def gradient_mark(storage) -> str:
    return f"{GRADIENT}{storage.data_ptr()} {storage.nbytes()}"


def instants(events: list[tuple[int, str, int]], fixed: dict[str, int]) -> dict[str, dict[str, int]]:
    """Allocator events in time → bytes by category at the highest moment of each instant.

    events: (nanoseconds, name, bytes); `[memory]` events carry the bytes allocated (or freed, negative).
    fixed: the categories that do not change during a step.
    """
    live, instant, gradients, peaks = 0, None, {}, {}
    for _, name, size in sorted(events, key=lambda e: e[0]):
        if name.startswith(PREFIX):
            instant = name.removeprefix(PREFIX)
        elif name.startswith(GRADIENT):
            key, bytes_ = name.removeprefix(GRADIENT).split()
            gradients[key] = int(bytes_)
            continue
        else:
            live += size
        if instant not in (None, "end") and live > peaks.get(instant, (0, 0))[0]:
            peaks[instant] = (live, sum(gradients.values()))
    return {name: {**fixed, "gradients": held, "activations and temporaries": total - held - sum(fixed.values())}
            for name, (total, held) in peaks.items()}


def main() -> None:
    import cloudpickle

    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the step prints is not the answer
    try:
        build, args = cloudpickle.load(sys.stdin.buffer)
        result = observe(build, args)
    except BaseException as error:
        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    json.dump(result, answer)
    answer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
