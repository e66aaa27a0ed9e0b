"""One training step measured on a GPU, by the caching allocator's own peak at each instant."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpucourse.measure.devices import device
from gpucourse.measure.fresh import storage_bytes


def observe(build, args) -> dict[str, dict[str, int]]:
    """Build on the GPU, take one step unobserved and one observed; bytes by instant and category."""
    where, optimizers, at = device().torch, {}, {}
    with torch.device(where):
        built = build(*args)
    step = built if callable(built) else lambda: build(*args)
    found = register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.setdefault(optimizer))
    step()  # the first step makes the optimizer's state
    found.remove()
    weights = {p for o in optimizers for group in o.param_groups for p in group["params"]}
    moments = [v for o in optimizers for s in o.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    if hasattr(step, "model"):
        weights |= {*step.model.parameters(), *step.model.buffers()}
    fixed = {"weights": storage_bytes(weights), "optimizer": storage_bytes(m for m in moments if m.is_cuda)}
    now = [None]

    def close() -> None:
        peak = torch.cuda.max_memory_allocated(where)
        if now[0] is not None and peak > sum(at.get(now[0], {}).values()):
            gradients = storage_bytes(p.grad for p in weights if p.grad is not None)
            at[now[0]] = {**fixed, "gradients": gradients,
                          "activations and temporaries": peak - gradients - sum(fixed.values())}

    def mark(instant: str) -> None:
        torch.cuda.synchronize(where)
        close()
        now[0] = None if instant == "end" else instant
        torch.cuda.reset_peak_memory_stats(where)

    if hasattr(step, "follow"):
        step.follow(mark)
    else:
        hook = register_optimizer_step_pre_hook(lambda *_: mark("step"))
    mark("forward")
    step()
    mark("end")
    if not hasattr(step, "follow"):
        hook.remove()
    return at
