"""10.6: ranks with different numbers of batches (case C07)."""

import random

from gpucourse.exercises.bank.data_parallel_ranks import loss_of, model_and_batch, near, weights
from gpucourse.exercises.expect import expect_close, expect_equal
from gpucourse.exercises.on_ranks import on_ranks

EACH, RATE = 3, 0.05  # samples of a batch, learning rate
PATIENCE = 15  # seconds: on a busy machine the ranks need some to start


def one_rank(function, seed: int, counts: list[int]):
    """On one rank: the weights after the learner's epoch, how many batches were taken, and other ends."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, most = dist.get_rank(), max(counts)
    model, x, y = model_and_batch(seed, len(counts) * most * EACH)
    parts = list(zip(x.split(EACH), y.split(EACH), strict=True))
    batches = [parts[r * most:r * most + count] for r, count in enumerate(counts)]

    def alone(last: int, divisor):
        """One process: at each step the mean over `divisor` ranks of the gradients of those that have a batch."""
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), RATE)
        for step in range(last):
            optimizer.zero_grad()
            having = [of[step] for of in batches if step < len(of)]
            for batch in having:
                (loss_of(twin, *batch) / divisor(len(having))).backward()
            optimizer.step()
        return weights(twin)

    known = {"right": alone(most, lambda having: having), "initial": alone(most, lambda having: len(counts)),
             "shortest": alone(min(counts), lambda having: having)}
    ddp = DistributedDataParallel(copy.deepcopy(model))
    optimizer = torch.optim.SGD(ddp.parameters(), RATE)
    taken = []

    def stream():
        for batch in batches[rank]:
            taken.append(1)
            yield batch

    function(ddp, optimizer, stream(), loss_of)
    dist.barrier()  # the next phase of the training
    return dict(got=weights(ddp.module), known=known, taken=len(taken))


NOTES = {
    "shortest": "Training has stopped with the shortest rank: the last batches of the others are lost.",
    "initial": "The last steps count too little: the gradient of those that still have data is divided by all ranks, "
               "also by those that had none.",
}


def run(function):
    few = random.randrange(2, 5)
    counts = [few + random.randrange(1, 3), few]
    random.shuffle(counts)
    results = on_ranks(one_rank, 2, function, random.randrange(10**6), counts, timeout=PATIENCE)
    longest = counts.index(max(counts))
    got, known = results[longest]["got"], results[longest]["known"]
    note = next((says for name, says in NOTES.items() if near(got, known[name])), "")
    yield expect_equal("every batch was taken", [result["taken"] for result in results], counts,
                       note=note or "Each rank's stream is to be read to its end.")
    yield expect_close("as one process that averages over those that have data", got, known["right"], 1e-12,
                       note=note or "Each step takes the mean over the ranks that still have a batch.")
    yield expect_equal("weights equal on all ranks", near(got, results[1 - longest]["got"]), True,
                       note="The rank that ended first has not followed the last steps.")


def joined(**options):
    """The right answer, or with another option."""
    def epoch(ddp, optimizer, batches, loss_of):
        from torch.distributed.algorithms.join import Join

        with Join([ddp], **options):
            for x, y in batches:
                optimizer.zero_grad()
                loss_of(ddp, x, y).backward()
                optimizer.step()
    return epoch


def plain(ddp, optimizer, batches, loss_of):
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(ddp, x, y).backward()
        optimizer.step()


def with_the_shortest(ddp, optimizer, batches, loss_of):
    import torch
    import torch.distributed as dist

    batches = list(batches)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, dist.ReduceOp.MIN)
    plain(ddp, optimizer, batches[:count], loss_of)


def each_alone(ddp, optimizer, batches, loss_of):
    """The surplus is trained on without the others."""
    import torch
    import torch.distributed as dist

    batches = list(batches)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, dist.ReduceOp.MIN)
    plain(ddp, optimizer, batches[:count], loss_of)
    with ddp.no_sync():
        plain(ddp, optimizer, batches[count:], loss_of)


def right():
    return joined(divide_by_initial_world_size=False)


BROKEN = {
    "a loop as always": (plain, "not all ranks had finished"),
    "as long as the shortest": (with_the_shortest, "stopped with the shortest rank"),
    "divides by all ranks": (joined(), "The last steps count too little"),
    "the surplus alone": (each_alone, "has not followed the last steps"),
}
