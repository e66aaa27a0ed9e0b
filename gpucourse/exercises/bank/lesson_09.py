"""Lesson 09, collectives."""

import random

from gpucourse.catalog.links import Link
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.kinds import Code, Guess, Misconception, Number, Parts, Pick, Quantity, one_of
from gpucourse.exercises.on_ranks import on_ranks
from gpucourse.predict import link as cost

GUESSES = (Guess("09.g1", ("all-reduce of 4 KiB", "all-reduce of 16 MiB"), "ms"),)

NETWORK = Link("25:10", 25e9, 10e-6)
RANKS, BUFFER = 16, 2**30
LOG_BYTES, LOG_SECONDS, LOG_RANKS = 8_589_934_592, 63_896e-6, 8

SITUATIONS = {"A": "all-reduce", "B": "all-gather", "C": "reduce-scatter", "D": "all-to-all", "E": "broadcast"}
WHY_NOT = {
    "broadcast": "A broadcast hands out what one rank has. Is it only one that has something?",
    "reduce": "A reduce leaves its result on one rank alone. Who needs it here?",
    "all-reduce": "An all-reduce leaves the whole sum everywhere. Is a sum asked for, and all of it, on every rank?",
    "all-gather": "An all-gather puts parts side by side and adds nothing. Is that what is needed?",
    "reduce-scatter": "A reduce-scatter leaves each rank the sum of its own part. Is that all it needs, and a sum?",
    "all-to-all": "An all-to-all hands each rank something else from each other one. Is what is handed out different?",
}


def situation(name: str) -> Pick:
    return one_of(WHY_NOT, SITUATIONS[name])


# Eight switches of eight nodes; each node and each of a switch's four links upwards has 50 GB/s.
NODES, UPWARDS, EACH = 8, 4, 50
SHARED_LINKS = {
    "all at once, GB/s a node": Quantity(expected=UPWARDS * EACH / NODES, unit="GB/s", within=0.01, misconceptions=(
        Misconception(EACH, "That is a node's own link. How many nodes share how many links upwards?"),
        Misconception(UPWARDS * EACH, "That is the links upwards together. Eight nodes send at once."),
        Misconception(EACH / NODES, "There are four links upwards, not one."))),
    "a ring in order, GB/s a node": Quantity(expected=EACH, unit="GB/s", within=0.01, misconceptions=(
        Misconception(UPWARDS * EACH / NODES, "Of a switch's eight nodes, how many have their next one elsewhere?"),)),
}


CARRIERS = {"A": "as it should be", "B": "no way from GPU to GPU", "C": "no InfiniBand",
            "D": "no way from GPU to network card", "E": "as it should be"}
NOT_CARRIED = {
    "as it should be": "There is a better way on this machine: does the line name it to its end?",
    "no way from GPU to GPU": "That would be a line between two GPUs of one node, through its shared memory.",
    "no InfiniBand": "Then the line would name the kernel's sockets.",
    "no way from GPU to network card": "That is a line between nodes that names the card and not the direct way to it.",
}


def carried(name: str) -> Pick:
    return one_of(NOT_CARRIED, CARRIERS[name])


def two_gib(gb_per_s: float) -> float:
    """ms of a ring over 16 ranks, by bandwidth alone."""
    return cost.seconds("all-reduce", 2**31, 16, Link("", gb_per_s * 1e9, 0.0)) * 1e3


TWO_GIB = {
    "E, ms": Quantity(expected=lambda: two_gib(50), unit="ms", misconceptions=(
        Misconception(lambda: two_gib(400), "400 Gbit/s are bits: a byte has eight."),
        Misconception(lambda: two_gib(50) * 8 / 15, "That sends the buffer once. A ring sends 2(n − 1)/n of it."))),
    "C, ms": Quantity(expected=lambda: two_gib(1.25), unit="ms", misconceptions=(
        Misconception(lambda: two_gib(10), "10 Gbit/s are bits: a byte has eight."),
        Misconception(lambda: two_gib(50), "That is the time over the card that it did not take."))),
}


def one_ring(function, seed: int):
    """On one rank: the learner's result, torch's, the bytes sent, the buffer's, other calls, and whether x changed."""
    import torch
    import torch.distributed as dist

    from gpucourse import ranks

    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed + 1000 * rank)
    x = torch.randn(n * 5000, generator=generator, dtype=torch.float64).exp()
    before, wanted = x.clone(), x.clone()
    dist.all_reduce(wanted)
    with ranks.counting() as seen:
        function(x)
    sends = [call for call in seen.calls if call.kind == "send"]
    others = sorted({call.kind for call in seen.calls} - {"send", "receive"})
    return x, wanted, sum(call.sent for call in sends), x.nbytes, others, not torch.equal(x, before)


def run_ring(function):
    for n in (2, 3):
        results = on_ranks(one_ring, n, function, random.randrange(10**6))
        off = [(result[0] - result[1]).abs().max().item() for result in results]
        worst = off.index(max(off))
        x, wanted, _, size, _, changed = results[worst]
        furthest = f" (rank {worst} is furthest off)" if off[worst] > 1e-9 else ""
        yield expect_close(f"{n} ranks: the sum on each rank{furthest}", x, wanted, atol=1e-9,
                           note="After the first n − 1 steps each rank has one finished part, and which one depends on "
                                "where it began. Which part does a rank give, and which does it take, in step k?"
                           if changed else "x is as it was: the sum belongs into x itself, in place.")
        yield expect_equal(f"{n} ranks: collectives used", results[0][4], [],
                           note="A ring uses messages only: isend and recv.")
        most = max(result[2] for result in results)
        yield expect_at_most(f"{n} ranks: sent by the busiest rank", most, 2 * (n - 1) / n * size, "bytes",
                             reason=f"for 2(n − 1) parts of 1/{n}",
                             note="More than one part travels in a step, or a part travels too often.")


def gather_and_add(x):
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    x.copy_(sum(parts))


def whole_buffer_round(x):
    """Sends everything n − 1 times."""
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    travelling, received = x.clone(), torch.empty_like(x)
    for _ in range(n - 1):
        sending = dist.isend(travelling, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        x += received
        travelling = received.clone()
    extra = dist.isend(x.clone(), (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    extra.wait()


def first_half_only(x):
    """Reduce-scatter without the all-gather."""
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    parts, received = x.chunk(n), torch.empty_like(x.chunk(n)[0])
    for step in range(n - 1):
        sending = dist.isend(parts[(rank - step) % n].clone(), (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        parts[(rank - step - 1) % n].add_(received)


def both_receive_first(x):
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x.chunk(n)[0])
    dist.recv(received, (rank - 1) % n)
    dist.send(x.chunk(n)[0].clone(), (rank + 1) % n)


def one_decision(function, losses: list[float], best: float):
    """On one rank: what the learner decides, and how many collectives it took."""
    import torch
    import torch.distributed as dist

    from gpucourse import ranks

    loss = torch.tensor(losses[dist.get_rank()], dtype=torch.float64)
    with ranks.counting() as seen:
        decided = function(loss, best)
    return decided, seen.count()


def run_should_stop(function):
    draw = random.Random()
    for turn, above in enumerate((True, False), start=1):
        mean = draw.uniform(1.0, 2.0)
        apart = draw.uniform(0.3, 0.6)
        losses = [mean + apart, mean - apart]
        best = mean - 0.1 if above else mean + 0.1  # the ranks' own losses lie on both sides of it
        results = on_ranks(one_decision, 2, function, losses, best)
        decided = [bool(result[0]) for result in results]
        yield expect_equal(f"case {turn}: both ranks decide alike", decided[0] == decided[1], True,
                           note="Each rank has a loss of its own. What do both have, bit for bit, after the call?")
        yield expect_equal(f"case {turn}: by the mean over the ranks", decided, [above, above],
                           note="The sum over the ranks, divided by how many there are, is held against `best`.")
        yield expect_at_most(f"case {turn}: collectives", max(result[1] for result in results), 1,
                             note="One call is enough for one number.")


def decides_alone(loss, best):
    return loss.item() > best


def reduces_to_one(loss, best):
    import torch.distributed as dist

    loss = loss.clone()
    dist.reduce(loss, dst=0)
    return (loss / dist.get_world_size()).item() > best if dist.get_rank() == 0 else False


def only_rank_zero_calls(loss, best):
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(loss)
    return (loss / dist.get_world_size()).item() > best


def sum_not_mean(loss, best):
    import torch.distributed as dist

    total = loss.clone()
    dist.all_reduce(total)
    return total.item() > best


def reduce_and_broadcast(loss, best):
    import torch.distributed as dist

    total = loss.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, 0)
    return (total / dist.get_world_size()).item() > best


def ms(ranks: int, factor: float = 1.0, messages: float = 1.0, size: float = BUFFER) -> float:
    """The time of 09.1 with one thing wrong, in ms."""
    hops, share = cost.messages("all-reduce", ranks), cost.bus_factor("all-reduce", ranks)
    return (hops * messages * NETWORK.latency + share * factor * size / NETWORK.bandwidth) * 1e3


EXERCISES = (
    Number("09.1", "Before the cluster is booked", unit="ms", within=0.005,
           expected=lambda: cost.seconds("all-reduce", BUFFER, RANKS, NETWORK) * 1e3,
           misconceptions=(
               Misconception(ms(RANKS, factor=RANKS / (2 * (RANKS - 1))),
                             "That sends the buffer once. Each rank sends 2(n − 1) parts of S/n."),
               Misconception(ms(RANKS, factor=0.5), "That is half of the ring: the reduce-scatter, or the all-gather."),
               Misconception(ms(RANKS, size=1e9), "1 GiB is 2³⁰ bytes, and a GB/s 10⁹ bytes a second."),
               Misconception(ms(RANKS, factor=RANKS), "That lets the bytes of a rank grow with the number of ranks.")),
           hints=("Two parts: how many messages follow one another, and how many bytes does a rank send?",
                  "2(n − 1) messages of α each; 2(n − 1)/n of the buffer at 1/bandwidth a byte. 1 GiB is 2³⁰ bytes.")),
    Parts("09.2", "A line of a log", parts={
        "algorithm, GB/s": Quantity(
            expected=lambda: cost.algorithm_bandwidth(LOG_BYTES, LOG_SECONDS) / 1e9, unit="GB/s", within=1e-4,
            misconceptions=(Misconception(LOG_BYTES / LOG_SECONDS / 2**30,
                                          "That is GiB/s: bandwidths are in powers of ten."),
                            Misconception(LOG_BYTES / LOG_SECONDS / 1e9 * 14 / 8, "That is the bus bandwidth."))),
        "bus, GB/s": Quantity(
            expected=lambda: cost.bus_bandwidth("all-reduce", LOG_BYTES, LOG_SECONDS, LOG_RANKS) / 1e9, unit="GB/s",
            within=1e-4, misconceptions=(
                Misconception(LOG_BYTES / LOG_SECONDS / 1e9, "That is the algorithm bandwidth once more."),
                Misconception(LOG_BYTES / LOG_SECONDS / 1e9 * 7 / 8,
                              "(n − 1)/n is the factor of an all-gather; an all-reduce is two such halves."),
                Misconception(LOG_BYTES / LOG_SECONDS / 1e9 * 8, "Bytes a rank do not grow with the ranks."))),
    }, hints=("Algorithm bandwidth knows nothing of how the sum is made: buffer divided by time.",
              "Bus bandwidth counts what each rank really sends: 2(n − 1)/n of the buffer.")),
    Code("09.3", "A ring", run=run_ring,
         broken={"gathers everything": (gather_and_add, "A ring uses messages only"),
                 "sends the whole buffer": (whole_buffer_round, "More than one part travels"),
                 "returns the sum": (lambda x: 2 * x, "in place"),
                 "only the first half": (first_half_only, "one finished part"),
                 "waits before it sends": (both_receive_first, "on 2 ranks: not all ranks had finished")},
         hints=("Cut x into n parts. In the first round a rank adds what comes to a part of its own. Which part must "
                "come first, so that after n − 1 steps one part has passed through every rank?",
                "In step k, rank r gives part r − k and takes part r − k − 1 (modulo n), adding. After n − 1 steps it "
                "holds the finished part r + 1.",
                "Second round, step k: give part r + 1 − k, take part r − k, and copy instead of adding. Start the "
                "send with isend before recv, on a clone, and wait for it after.")),
    Number("09.4", "From which size does bandwidth rule?", unit="KiB", within=0.005,
           expected=lambda: cost.half_size("all-reduce", RANKS, NETWORK) / 1024,
           misconceptions=(
               Misconception(NETWORK.latency * NETWORK.bandwidth / 1024,
                             "That is the turn for one message between two ranks. A ring has 2(n − 1) of them."),
               Misconception(RANKS * NETWORK.latency * NETWORK.bandwidth / 1000, "A KiB is 1,024 bytes."),
               Misconception(2 * (RANKS - 1) * NETWORK.latency * NETWORK.bandwidth / 1024,
                             "The bytes have a factor too: 2(n − 1)/n. Set both parts of the formula equal.")),
           hints=("Write the two parts of the time as functions of S and set them equal.",
                  "2(n − 1)·α = 2(n − 1)/n · S · β. What is S?")),
    Parts("09.5", "Which one?", parts={name: situation(name) for name in SITUATIONS},
          hints=("For each: who has something at the start, who needs something at the end, and is anything added?",
                 "Added and needed everywhere; added and needed in parts; put side by side; handed out; exchanged.")),
    Code("09.6", "Agree to stop", run=run_should_stop,
         broken={"decides alone": (decides_alone, "What do both have, bit for bit"),
                 "reduces to rank 0": (reduces_to_one, "What do both have, bit for bit"),
                 "only rank 0 calls": (only_rank_zero_calls, "on 2 ranks: not all ranks had finished"),
                 "the sum instead of the mean": (sum_not_mean, "divided by how many there are"),
                 "two collectives": (reduce_and_broadcast, "One call is enough")},
         hints=("After dist.reduce, what is in `loss` on rank 1? And what will rank 1 decide?",
                "Every rank must hold the same number before it compares. Which collective leaves the sum everywhere?",
                "Clone the loss, all_reduce the clone, divide by dist.get_world_size(), compare .item() with best.")),
    Parts("09.7", "Two nodes are fast", parts={
        "what": Pick(
            options={"a": "the same bus bandwidth is to be expected, since it does not depend on the number of ranks",
                     "b": "it will be 32 times slower",
                     "c": "little: two neighbours may share one switch, and 64 meet at links that two never load "
                          "together",
                     "d": "nothing at all, because two nodes use a tree and 64 use a ring"},
            right="c",
            why={"a": "It would not if every link were as free as the one between these two. Who shares a link then?",
                 "b": "A ring's bytes a rank hardly grow. What might slow it is not the count of ranks by itself.",
                 "d": "Libraries choose the method by size and ranks; a measurement is worth something under either."}),
        **SHARED_LINKS,
    }, hints=("Draw eight switches with eight nodes each. Which links does a pair use, which do all pairs share?",
              "A fabric is characterised by loading it: all nodes at once, many placements.",
              "What leaves a switch goes over its links upwards: their GB/s together, divided by the nodes that send. "
              "In a ring in order of the switches only one node of each sends to another switch.")),
    Parts("09.8", "What carries it?", parts={name: carried(name) for name in CARRIERS} | TWO_GIB,
          hints=("For each: are the two GPUs in one node? Through which memory do the bytes go?",
                 "The number in brackets is the GPU within its node. The last word of the line is the way.",
                 "2 · 15/16 · 2³¹ bytes over 50 GB/s, and over 1.25.")),
)
