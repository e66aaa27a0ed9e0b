"""10.2: a window of micro-batches, synchronised once."""

import random

from gpucourse.exercises.bank.data_parallel_ranks import gradient, loss_of, model_and_batch, near, weights
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.on_ranks import on_ranks

WINDOW, EACH = 4, 3  # micro-batches, samples of each


def one_rank(function, seed: int):
    """On one rank: the learner's gradient, what it could be the gradient of, and what it took."""
    import copy

    import torch.distributed as dist

    from gpucourse import ranks

    rank, n = dist.get_rank(), dist.get_world_size()
    model, x, y = model_and_batch(seed, n * WINDOW * EACH)
    parts = list(zip(x.split(EACH), y.split(EACH), strict=True))
    windows = [parts[r * WINDOW:(r + 1) * WINDOW] for r in range(n)]

    def summed(rank: int, places) -> "object":
        twin = copy.deepcopy(model)
        for place in places:
            (loss_of(twin, *windows[rank][place]) / WINDOW).backward()
        return gradient(twin)

    every, last = range(WINDOW), WINDOW - 1
    mean = {name: sum(summed(r, places) for r in range(n)) / n
            for name, places in (("all", every), ("first", [0]), ("last", [last]))}
    known = {"right": mean["all"], "own": summed(rank, every),
             "first": mean["first"] + summed(rank, range(1, WINDOW)),
             "last": mean["last"] + summed(rank, range(last)), "last alone": mean["last"],
             "sum of ranks": n * mean["all"], "sum of micro-batches": WINDOW * mean["all"]}
    before = weights(model)
    with ranks.counting() as seen:
        function(model, windows[rank], loss_of)
    got = gradient(model)
    with ranks.counting() as later:  # on every rank alike, so that a hook that is left finds its partners
        loss_of(model, *windows[rank][0]).backward()
    moved = not near(weights(model), before)
    return dict(got=got, known=known, moved=moved, calls=len(seen.calls), sent=seen.size(), left=later.count(),
                parameters=len(list(model.parameters())), size=sum(p.nbytes for p in model.parameters()))


NOTES = {
    "own": "Each rank still has its own gradient. What did the all-reduce average, if anything: .grad, or the weights?",
    "first": "The first micro-batch was averaged, and what came after it is each rank's own: off by one. After which "
             "micro-batch is the window's gradient complete?",
    "last": "Only the last micro-batch's gradient was averaged; what had gathered before is each rank's own. A "
            "tensor's hook sees the gradient on its way; which hook comes after it was added to .grad?",
    "last alone": "Only the last micro-batch is left. Who cleared what the others had gathered?",
    "sum of ranks": "That is the sum over the ranks: DDP gives the mean.",
    "sum of micro-batches": "That is the sum of the micro-batches' means. The window's mean is wanted.",
}


def run(function):
    results = on_ranks(one_rank, 2, function, random.randrange(10**6))
    got, known = results[1]["got"], results[1]["known"]
    note = next((says for name, says in NOTES.items() if near(got, known[name])), "")
    yield expect_close("gradients equal on all ranks", got, results[0]["got"], 0.0, note=note)
    yield expect_close("equal to one process on the whole window", got, known["right"], 1e-12, note=note)
    yield expect_equal("weights as they were", any(result["moved"] for result in results), False,
                       note="Something has changed the weights. It is their gradients that are averaged.")
    first = results[0]
    yield expect_at_most("all-reduces", first["calls"], first["parameters"], reason="for one synchronisation",
                         note="More than one micro-batch is being synchronised. Nothing reads .grad before the last.")
    yield expect_at_most("sent in all", first["sent"], first["size"], "bytes", reason="for one synchronisation")
    yield expect_equal("all-reduces in a backward pass after it", first["left"], 0,
                       note="A hook is still on the model. register_…hook returns a handle with remove().")


def hooked(when=lambda place: place == WINDOW - 1, what=lambda p: p.grad, mean=True, remove=True, share=True):
    """The right answer, or with one thing wrong."""
    def accumulate(model, window, loss_of):
        import torch
        import torch.distributed as dist

        def average(p):
            with torch.no_grad():
                dist.all_reduce(what(p))
                if mean:
                    what(p).div_(dist.get_world_size())

        for place, (x, y) in enumerate(window):
            handles = []
            if when(place):
                handles = [p.register_post_accumulate_grad_hook(average) for p in model.parameters()]
            (loss_of(model, x, y) / (len(window) if share else 1)).backward()
            for handle in handles if remove else ():
                handle.remove()
    return accumulate


def on_its_way(model, window, loss_of):
    """A tensor's hook: it is given the last micro-batch's gradient, before that is added to .grad."""
    import torch.distributed as dist

    def averaged(g):
        g = g.clone()
        dist.all_reduce(g)
        return g / dist.get_world_size()

    for place, (x, y) in enumerate(window):
        handles = [p.register_hook(averaged) for p in model.parameters()] if place == len(window) - 1 else []
        (loss_of(model, x, y) / len(window)).backward()
        for handle in handles:
            handle.remove()


def cleared(model, window, loss_of):
    for x, y in window[:-1]:
        (loss_of(model, x, y) / len(window)).backward()
    model.zero_grad()
    hooked(when=lambda place: True)(model, window[-1:], lambda *args: loss_of(*args) / len(window))


BROKEN = {
    "reduces only the last micro-batch": (on_its_way, "Only the last micro-batch's gradient was averaged"),
    "reduces the parameter": (hooked(what=lambda p: p), "Each rank still has its own gradient"),
    "adds up the parameter": (hooked(what=lambda p: p, mean=False), "Something has changed the weights"),
    "synchronises the first": (hooked(when=lambda place: place == 0), "The first micro-batch was averaged"),
    "never synchronises": (hooked(when=lambda place: False), "Each rank still has its own gradient"),
    "synchronises each": (hooked(when=lambda place: True), "More than one micro-batch is being synchronised"),
    "the sum over the ranks": (hooked(mean=False), "That is the sum over the ranks"),
    "the sum of the means": (hooked(share=False), "That is the sum of the micro-batches' means"),
    "leaves its hooks": (hooked(remove=False), "A hook is still on the model"),
    "clears the others": (cleared, "Only the last micro-batch is left"),
}
