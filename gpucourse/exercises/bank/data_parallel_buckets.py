"""10.1: gradients averaged in buckets, while the backward pass still runs."""

import random
import time

from gpucourse.exercises.bank.data_parallel_ranks import gradient, loss_of, model_and_batch, near
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.on_ranks import on_ranks

EACH = 6  # samples of a rank
LATENCY = 40e-3  # seconds a message: so long that a wait for it shows, also on a busy machine
BUCKET = 12_000  # bytes


def buckets(sizes: list[int], full: int) -> int:
    """How many buckets gradients of these bytes fill, when one is closed as soon as it holds `full` bytes."""
    count, held = 0, 0
    for size in sizes:
        held += size
        if held >= full:
            count, held = count + 1, 0
    return count + (held > 0)


def one_rank(function, seed: int):
    """Two steps on one rank, on different data, and what is to be compared of each."""
    import copy

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gpucourse import ranks

    rank, n = dist.get_rank(), dist.get_world_size()
    model, x, y = model_and_batch(seed, 2 * n * EACH)
    alone, ddp = copy.deepcopy(model), DistributedDataParallel(copy.deepcopy(model))
    finish = function(model, BUCKET)
    if not callable(finish):
        raise TypeError(f"bucketed returned {type(finish).__name__}; it must return finish, a function")
    steps = []
    for step in range(2):
        whole = slice(step * n * EACH, (step + 1) * n * EACH)
        mine = slice(whole.start + rank * EACH, whole.start + (rank + 1) * EACH)
        for each in (model, alone, ddp):
            each.zero_grad()
        loss_of(alone, x[whole], y[whole]).backward()
        loss_of(ddp, x[mine], y[mine]).backward()
        with ranks.counting() as seen:
            loss = loss_of(model, x[mine], y[mine])
            begin = time.perf_counter()
            loss.backward()
            spent, started = time.perf_counter() - begin, seen.count()
            finish()
        steps.append(dict(got=gradient(model), ddp=gradient(ddp.module), alone=gradient(alone), started=started,
                          spent=spent, calls=[(call.kind, call.size) for call in seen.calls]))
    return steps


def run(function):
    n = 2
    results = on_ranks(one_rank, n, function, random.randrange(10**6), link=f"1:{1e6 * LATENCY:.0f}")
    model, _, _ = model_and_batch(0, 1)
    sizes = [p.nbytes for p in model.parameters()][::-1]
    most = buckets(sizes, BUCKET)
    for step in range(2):
        of = [steps[step] for steps in results]
        name = f"step {step + 1}"
        yield expect_close(f"{name}: gradients equal on all ranks", of[1]["got"], of[0]["got"], 0.0,
                           note=why(of, step))
        yield expect_close(f"{name}: equal to DDP's", of[0]["got"], of[0]["ddp"], 1e-12, note=why(of, step))
        yield expect_close(f"{name}: equal to one process on the whole batch", of[0]["got"], of[0]["alone"], 1e-12,
                           note=why(of, step))
        kinds = sorted({kind for kind, _ in of[0]["calls"]})
        yield expect_equal(f"{name}: collectives used", kinds, ["all-reduce"])
        yield expect_at_most(f"{name}: all-reduces", len(of[0]["calls"]), most, reason=f"for {most} buckets",
                             note="One is being started for less than a full bucket. What would have to be full "
                                  "before one starts?")
        yield expect_at_most(f"{name}: sent in all", sum(size for _, size in of[0]["calls"]), sum(sizes), "bytes",
                             note="Each gradient travels once.")
        yield expect_at_most(f"{name}: not yet started when backward ended", len(of[0]["calls"]) - of[0]["started"], 1,
                             "all-reduces", note="Nothing travels while backward runs. Who knows, during backward, "
                                                 "that a gradient is finished?")
        largest = max((size for _, size in of[0]["calls"]), default=0)
        yield expect_at_most(f"{name}: the largest all-reduce", largest, BUCKET + max(sizes), "bytes",
                             note="A bucket is closed as soon as it holds bucket_bytes.")
    waits = [steps["spent"] / (2 * LATENCY * max(len(steps["calls"]), 1)) for steps in results[0]]  # two messages each
    yield expect_at_most("share of the link's time that backward stood still", min(waits), 0.5,
                         note="backward() waits for the link: start with async_op=True, keep the handle, and wait in "
                              "finish().")


def why(of: list[dict], step: int) -> str:
    got, alone = of[0]["got"], of[0]["alone"]
    if near(got, len(of) * alone):
        return "That is the sum over the ranks. DDP gives the mean."
    if step:
        return "The first step was right: what has to be as it was before a second backward pass?"
    return "What comes out of the all-reduce is in your bucket. Is it in each parameter's .grad as well, divided?"


def packed(model, bucket_bytes):
    """Parameters in buckets, in the order in which backward reaches them."""
    groups, group = [], []
    for p in reversed(list(model.parameters())):
        group.append(p)
        if sum(q.nbytes for q in group) >= bucket_bytes:
            groups.append(group)
            group = []
    return [*groups, group] if group else groups


def reducer(mean=True, wait_at_once=False, back=True, again=True):
    """The right answer, or with one thing wrong."""
    def attach(model, bucket_bytes):
        import torch
        import torch.distributed as dist

        groups = packed(model, bucket_bytes)
        of = {p: place for place, group in enumerate(groups) for p in group}
        left, flying = [len(group) for group in groups], []

        def ready(p):
            place = of[p]
            left[place] -= 1
            if left[place] == 0:
                flat = torch.cat([q.grad.flatten() for q in groups[place]])
                work = dist.all_reduce(flat, async_op=True)
                if wait_at_once:
                    work.wait()
                flying.append((groups[place], flat, work))

        def finish():
            for group, flat, work in flying:
                work.wait()
                if mean:
                    flat /= dist.get_world_size()
                if back:
                    for q, part in zip(group, flat.split([q.numel() for q in group]), strict=True):
                        q.grad.copy_(part.view_as(q))
            flying.clear()
            if again:
                left[:] = [len(group) for group in groups]

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(ready)
        return finish
    return attach


def each_parameter(model, bucket_bytes):
    return reducer()(model, 1)


def after_backward(model, bucket_bytes):
    import torch
    import torch.distributed as dist

    def finish():
        for group in packed(model, bucket_bytes):
            flat = torch.cat([q.grad.flatten() for q in group])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for q, part in zip(group, flat.split([q.numel() for q in group]), strict=True):
                q.grad.copy_(part.view_as(q))
    return finish


def one_bucket(model, bucket_bytes):
    return reducer()(model, 10**9)


BROKEN = {
    "one all-reduce for each parameter": (each_parameter, "less than a full bucket"),
    "after backward": (after_backward, "Nothing travels while backward runs"),
    "one bucket": (one_bucket, "A bucket is closed as soon as"),
    "waits in the hook": (reducer(wait_at_once=True), "backward() waits for the link"),
    "the sum": (reducer(mean=False), "That is the sum over the ranks"),
    "never copied back": (reducer(back=False), "in each parameter's .grad as well"),
    "works once": (reducer(again=False), "before a second backward pass"),
}
