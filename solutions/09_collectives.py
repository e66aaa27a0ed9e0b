# %% [markdown]
# # 09 · Collectives
#
# What it costs several processes to agree, and how to know it before a cluster is booked.
#
# **Minutes** 75 · **Hardware** cpu, gpus, nodes · **Needs** 01
#
# After this lesson you can
#
# - say what each of the six collectives leaves on every rank, and which one a situation asks for;
# - predict the time of a collective from two numbers of a link, and the size at which each of them rules;
# - write a ring all-reduce, and count the bytes that it sends;
# - turn a benchmark's log into bus bandwidth, and verify a link before training on it;
# - read a run that hangs: which rank waits, in which call, for whom.

# %%
import contextlib
import math
import tempfile
import time

import torch
import torch.distributed as dist

from gpucourse import check, compare, guess, hint, measure, question, ranks, solution
from gpucourse.catalog import GiB, KiB, MiB, bytes_text, published, seconds_text, shape
from gpucourse.catalog.links import Link, link
from gpucourse.evidence import column, columns_text
from gpucourse.live.alpha_beta import residuals
from gpucourse.predict import link as cost
from gpucourse.predict import parameters

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # 0: as many ranks as there are GPUs, or two processes on a CPU
seed: int = 0  # of what is drawn at random

# %% [markdown]
# ## The question
# Two processes train the same model, each on its own half of the data. After every backward pass they have to agree on the gradients. On one machine nobody notices; between two machines it takes longer than the computing. Now eight are wanted instead of two. One colleague expects four times the traffic for each of them, another says that nothing changes at all, and the benchmark that came with the cluster prints two different bandwidths for the same run.

# %% tags=["nbval-check-output"]
gradients = 2 * parameters(shape("gpt2-xl")).total  # bf16
print(f"gradients of gpt2-xl: {gradients / GiB:.2f} GiB, to be agreed on after every step")

# %% [markdown]
# ## Predict
# Below, two processes add up a buffer over a link that carries 0.4 GB/s in each direction and takes 1 ms for each message, however short. Write down how long one all-reduce of 4 KiB and one of 16 MiB will take, in ms.

# %%
mine = guess("09.g1", {"all-reduce of 4 KiB": ..., "all-reduce of 16 MiB": ...}, "ms")

# %% [markdown]
# ## Mechanism
# ### Six ways to agree
# A *rank* is one process of a group; a *collective* is a call that every rank of the group makes, and that none can finish alone. There are six that matter. Here are four ranks, played by one process: each begins with its own small vector, and the table shows what it holds after.

# %% tags=["nbval-check-output"]
def six() -> dict[str, torch.Tensor]:
    """What each collective leaves on this rank."""
    x = ranks.by_rank(lambda rank: torch.tensor([rank + 1.0, 10.0 * (rank + 1)]))  # [2], differs by rank
    wide = ranks.by_rank(lambda rank: torch.arange(4.0) + 10 * rank)  # [4], one element for each rank
    left = {"before": x.clone(), "before, wide": wide.clone()}
    left["broadcast from 0"] = x.clone()
    dist.broadcast(left["broadcast from 0"], 0)
    left["all-reduce"] = x.clone()
    dist.all_reduce(left["all-reduce"])
    left["all-gather"] = torch.empty(8)
    dist.all_gather_single(left["all-gather"], x)
    left["reduce-scatter, wide"] = torch.empty(1)
    dist.reduce_scatter_single(left["reduce-scatter, wide"], wide)
    left["all-to-all, wide"] = torch.empty(4)
    dist.all_to_all_single(left["all-to-all, wide"], wide)
    return left


results = ranks.simulate(six, 4)
table = [["", *(f"rank {rank}" for rank in range(4))]]
for name in results[0]:
    table.append([name, *(" ".join(f"{value:g}" for value in result[name].tolist()) for result in results)])
print(columns_text(table))

# %% [markdown]
# The sixth, *reduce*, is an all-reduce of which only one rank keeps the result: that is what makes it dangerous, as the end of this lesson shows. Two identities are worth more than the six definitions. An all-reduce is a reduce-scatter followed by an all-gather: first each rank gets the finished sum of *its* part, then the parts are passed round. And an all-to-all is a transpose: row *i* of rank *j* becomes row *j* of rank *i*.
#
# ### Why the colleague who says "nothing changes" is nearly right
# The obvious way to add up is to send everything to rank 0, add, and send the sum back. Count what rank 0 moves: with $n$ ranks and $S$ bytes it receives $(n-1)S$ and sends $(n-1)S$. Everybody waits for it.
#
# In a *ring* each rank only talks to its neighbour. Cut the buffer into $n$ parts. In $n-1$ steps every rank passes on one part, adding its own numbers to what it received: after that each rank holds one finished part. In $n-1$ more steps the finished parts go round. Each rank has sent $2(n-1)$ parts of $S/n$ bytes, and all ranks did so at the same time.

# %% tags=["nbval-check-output"]
table = [["ranks", "through rank 0: it sends", "ring: each rank sends"]]
for n in (2, 4, 8, 64, 1024):
    table.append([f"{n}", f"{n - 1} S", f"{cost.bus_factor('all-reduce', n):.3f} S"])
print(columns_text(table))

# %% [markdown]
# The bytes a rank sends approach twice the buffer and stay there. What does grow is the *number* of messages, $2(n-1)$, and each of them pays the latency.
#
# ### Two numbers of a link
# So the time has two parts: $\alpha$ for each message, and $\beta = 1/\text{bandwidth}$ for each byte,
#
# $$t = 2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,S\,\beta .$$
#
# The first rules for small buffers, the second for large ones, and they are equal at $S = n\,\alpha/\beta$.

# %% tags=["nbval-check-output"]
here = link("0.4:1000")  # GB/s : µs
expected = {f"all-reduce of {name}": cost.seconds("all-reduce", size, 2, here) * 1e3
            for name, size in (("4 KiB", 4 * KiB), ("16 MiB", 16 * MiB))}
turn = cost.half_size("all-reduce", 2, here)
print(" · ".join(f"{name}: {ms:.2f} ms" for name, ms in expected.items()))
print(f"latency and bandwidth take the same time at {turn / KiB:.0f} KiB")

# %% [markdown]
# ### A ring or a tree
# A *tree* adds up towards its root and hands the sum back down: $2\lceil\log_2 n\rceil$ messages one after another instead of $2(n-1)$. With one tree half of the ranks would only ever send or receive; two trees, each for half of the buffer, with the inner ranks of one as leaves of the other, keep every link busy, and each rank sends $2S$ (Sanders, Speck and Träff, 2009). So
#
# $$t_\text{tree} = 2\lceil\log_2 n\rceil\,\alpha + 2\,S\,\beta .$$

# %% tags=["nbval-check-output"]
def tree_seconds(size: float, n: int, over: Link) -> float:
    return 2 * math.ceil(math.log2(n)) * over.latency + 2 * size / over.bandwidth


network, groups = link("ib-400"), (8, 64, 1024)
table = [[f"{network.title}, ms", *(f"{n}, {way}" for n in groups for way in ("ring", "tree"))]]
for size in (8 * KiB, 1 * MiB, 32 * MiB, GiB):
    times = [f(n) for n in groups for f in (lambda n: cost.seconds("all-reduce", size, n, network),
                                            lambda n: tree_seconds(size, n, network))]
    table.append([bytes_text(size), *(f"{t * 1e3:.3g}" for t in times)])
messages = network.latency * network.bandwidth
meet = [bytes_text(n * (n - 1 - math.ceil(math.log2(n))) * messages) for n in groups]
print(columns_text(table) + f"\nthe ring is the faster one from {', '.join(meet)} on; computed")

# %% [markdown]
# "Trees for small buffers, rings for large ones" is right and leaves out the size: where the two meet grows with the square of the ranks, since a ring over twice as many pays twice the messages and saves half as much. Among eight ranks the ring wins for a large bucket; among a thousand there is no bucket that is large enough. Libraries choose by this arithmetic, with numbers of their own for each link (NCCL prints its choice with `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING`).

# %% [markdown]
# ## Measure
# Now real processes: `ranks.run` starts a function of this notebook on two of them and brings back what each returns. The link between them is *paced*: the data travel through this machine's memory, and the clock waits as long as the stated link would have taken. What comes out is labelled simulated, because the link is; the processes, the calls and the waiting are real.

# %% tags=["setup"]
def time_all_reduce(sizes: list[int], repeats: int) -> list[float]:
    """Seconds of an all-reduce of each size (bytes), the least of `repeats` on this rank: what the link can do."""
    least = []
    for size in sizes:
        x = torch.ones(size // 4, device=ranks.device())  # [size / 4] fp32
        dist.all_reduce(x)  # the first one also connects the ranks
        runs = []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(x)
            x.sum().item()  # on a GPU: wait until it is there
            runs.append(time.perf_counter() - begin)
        least.append(min(runs))
    return least


# %% tags=["nbval-ignore-output"]
sizes = [4 * KiB, 16 * KiB, 64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB, 16 * MiB]
with measure.quiet():  # nothing else of the course is timed meanwhile
    paced = ranks.run(time_all_reduce, 2, sizes, 7, link="0.4:1000")[0]
fitted = cost.fit("all-reduce", 2, sizes[::2], paced[::2])  # from every other size
print(f"fitted to four sizes: {fitted.bandwidth / 1e9:.3f} GB/s and {fitted.latency * 1e6:.0f} µs")
for size, seen in zip(sizes[1::2], paced[1::2], strict=True):
    predicted = cost.seconds("all-reduce", size, 2, fitted)
    print(f"{bytes_text(size):>8}, not used in the fit: predicted {seconds_text(predicted)}, seen {seconds_text(seen)}")

# %% [markdown]
# A sum of the elements stands in the timed part: on a GPU the call returns when the work is queued, and a clock that does not wait would measure nothing (lesson 02).
#
# ## Compare

# %% tags=["nbval-ignore-output"]
seen = {"all-reduce of 4 KiB": paced[0] * 1e3, "all-reduce of 16 MiB": paced[-1] * 1e3}
compare(mine, column("computed", expected, "ms"), column("simulated", seen, "ms", "2 ranks, paced link"))

# %% [markdown]
# Now the same without the pacing: over whatever is between the ranks of this machine. Fit again, and look at what the two numbers leave over.

# %% tags=["nbval-ignore-output"]
count = world_size or 2
with measure.quiet():
    raw = ranks.run(time_all_reduce, count, sizes, 15)[0]
own = cost.fit("all-reduce", count, sizes, raw)
print(f"this machine: {own.bandwidth / 1e9:.2f} GB/s and {own.latency * 1e6:.0f} µs fit best")
residuals(sizes, {"paced": (paced, fitted), "this machine": (raw, own)}, "all-reduce", count,
          "Two numbers describe a link; a machine's memory is not one link")

# %% [markdown]
# Over the paced link the points lie on the model. Between processes of one machine they do not: small buffers stay in a cache, large ones do not; the processes share cores with each other and with everything else; the library changes its method with the size. The model has not failed. It says how much of the time is *not* explained by a link, and at which size that begins. On a cluster the same picture is drawn before training, and a point that leaves the line is a question to ask.

# %% [markdown]
# ## At full size
# The gradients from the beginning, over links that you may have: one all-reduce by a ring, every hop of it over the link of the row. (Few machines join 64 GPUs by NVLink or PCIe; the column is there to show how little it differs from the one before.) From the size in the last column on, a message of 8 ranks gets at least half of the link's bandwidth.

# %% tags=["nbval-check-output"]
table = [["computed, ms", "8 ranks", "64 ranks", "half of the bandwidth from"]]
for name in ("nvlink4", "pcie5", "ib-400", "ethernet-100"):
    times = [cost.seconds("all-reduce", gradients, n, link(name)) * 1e3 for n in (8, 64)]
    table.append([link(name).title, *(f"{ms:.1f}" for ms in times),
                  f"{cost.half_size('all-reduce', 8, link(name)) / MiB:.2f} MiB"])
print(columns_text(table))

# %% [markdown]
# A flat ring over many nodes sends everything through the network. Two levels do less: reduce-scatter inside each node, an all-reduce of each GPU's part between the nodes, an all-gather inside. Only one part in eight crosses.

# %% tags=["nbval-check-output"]
inside, between = link("nvlink4"), link("ethernet-100")
flat = cost.seconds("all-reduce", gradients, 64, between)
levels = [cost.seconds("reduce-scatter", gradients, 8, inside), cost.seconds("all-reduce", gradients / 8, 8, between),
          cost.seconds("all-gather", gradients, 8, inside)]
print(f"64 GPUs, one ring over {between.title}: {flat * 1e3:.0f} ms")
print("two levels: " + " + ".join(f"{t * 1e3:.1f}" for t in levels) + f" = {sum(levels) * 1e3:.0f} ms, computed")

# %% [markdown]
# What a log prints. nccl-tests gives each run two bandwidths: *algorithm* bandwidth is the buffer divided by the time, and falls with the number of ranks although nothing got slower; *bus* bandwidth multiplies it by $2(n-1)/n$ and can be held against the link's own figure. From a published log of eight A100 in one node:

# %% tags=["nbval-check-output"]
rows = [(float(row["bytes"]), float(row["microseconds"]) * 1e-6) for row in published("allreduce_8xa100")]
table = [["published, 8 × A100", "time", "algorithm, GB/s", "bus, GB/s"]]
for size, seconds in (rows[0], rows[len(rows) // 2], rows[-1]):
    algorithm, bus = cost.algorithm_bandwidth(size, seconds), cost.bus_bandwidth("all-reduce", size, seconds, 8)
    table.append([bytes_text(size), seconds_text(seconds), f"{algorithm / 1e9:.3g}", f"{bus / 1e9:.3g}"])
print(columns_text(table))

# %% [markdown]
# ### Before the first step
# A training of a month is booked on the strength of two numbers from a brochure. They can be had in a minute, from the same fit: α from the small buffers, β from the large ones, each held against what was promised. Here three links are played, one of them as promised:

# %% tags=["nbval-ignore-output"]
def delivered(promised: Link, sizes: list[int], times: list[float]) -> list[str]:
    """What a fit finds of a link, and whether it keeps 80 % of the bandwidth and at most 1.5 times the latency."""
    found = cost.fit("all-reduce", 2, sizes, times)
    kept = found.bandwidth >= 0.8 * promised.bandwidth and found.latency <= 1.5 * promised.latency
    return [f"{found.bandwidth / 1e9:.3f}", f"{found.latency * 1e6:.0f}", "yes" if kept else "no"]


table = [["simulated, promised 0.4 GB/s and 1000 µs", "GB/s", "µs", "accepted"]]
for played in ("0.4:1000", "0.25:1000", "0.4:2500"):
    with measure.quiet():
        times = ranks.run(time_all_reduce, 2, sizes[::2], 5, link=played)[0]
    table.append([f"a link of {played}", *delivered(here, sizes[::2], times)])
print(columns_text(table))

# %% [markdown]
# One number alone would have accepted two of the three. On a cluster the program is nccl-tests, over all nodes at once, because what they share only shows when all use it (09.7); when the whole is slow, halves of it find the slow node in a few runs. The function of this notebook does as well. `ranks.run` stays on one machine; `ranks.script` writes the function, and what it uses, into a file, and gives the line that starts it on several:

# %% tags=["nbval-check-output"]
with contextlib.chdir(tempfile.mkdtemp()):  # of your own you keep the file, in a folder that all nodes see
    made = ranks.script(time_all_reduce, 16, nodes=2, args=(sizes, 7))
print("by hand, on each node:", made.torchrun, "\nunder Slurm:", made.srun, sep="\n")

# %% [markdown]
# `torchrun` starts the ranks of one node and tells each its number; what differs between the nodes is the node's own number, and what they share is the address of the first.
#
# ### What carries it
# A slow link is often not slow but another one. NCCL takes the best way that it finds between two GPUs, and says which with `NCCL_DEBUG=INFO`, a line for each channel. Where something is missing, a driver module, a permission, a cable, it takes the next best and trains on.

# %% tags=["nbval-check-output"]
ways = [["the log says", "the bytes go", "to rule it in or out"],
        ["via P2P/…", "from GPU to GPU, over NVLink or PCIe", "NCCL_P2P_DISABLE, NCCL_P2P_LEVEL"],
        ["via SHM/…", "through the host's memory: no way from GPU to GPU", "NCCL_SHM_DISABLE"],
        ["via NET/IB/…/GDRDMA", "from GPU to network card, by InfiniBand or RoCE", "NCCL_NET_GDR_LEVEL"],
        ["via NET/IB/…", "through the host's memory to the card", "NCCL_IB_HCA, NCCL_IB_DISABLE"],
        ["via NET/Socket/…", "through the kernel's TCP, whatever interface it took", "NCCL_SOCKET_IFNAME"]]
print(columns_text(ways, left=3))
print("\nNVIDIA, NCCL user guide, environment variables; lines as in NVIDIA/nccl#1189, #1412 and nccl-tests#166")

# %% [markdown]
# The variables are for finding out. One that is left in a script for ever hides the next fault, and the guide says so too: only those that describe the system belong there, such as the names of its interfaces.

# %% [markdown]
# ## Exercises
# ### 09.1 Before the cluster is booked
# How long does one all-reduce of 1 GiB take over 16 ranks on a link of 25 GB/s and 10 µs a message, with a ring? In ms.

# %% tags=["stub"] exercise="09.1"
answer_1 = ...

# %% tags=["solution"] exercise="09.1"
answer_1 = (2 * 15 * 10e-6 + 2 * 15 / 16 * 2**30 / 25e9) * 1e3

# %% tags=["check"] exercise="09.1"
check("09.1", answer_1)

# %% [markdown]
# ### 09.2 A line of a log
# A run of nccl-tests on 8 GPUs: all-reduce, 8,589,934,592 bytes, 63,896 µs. Give the algorithm bandwidth and the bus bandwidth, in GB/s.

# %% tags=["stub"] exercise="09.2"
answer_2 = {"algorithm, GB/s": ..., "bus, GB/s": ...}

# %% tags=["solution"] exercise="09.2"
algorithm = 8_589_934_592 / 63_896e-6 / 1e9
answer_2 = {"algorithm, GB/s": algorithm, "bus, GB/s": algorithm * 2 * 7 / 8}

# %% tags=["check"] exercise="09.2"
check("09.2", answer_2)

# %% [markdown]
# ### 09.3 A ring
# Write the all-reduce as a ring, with nothing but messages to the next rank and from the previous one: `dist.isend` and `dist.recv` (or `dist.batch_isend_irecv`). `x` has a length that the number of ranks divides; change it in place. The check runs it on real ranks, with two and with three, compares it with `dist.all_reduce`, and counts the bytes: each rank may send $2(n-1)/n$ of the buffer and not a byte more.

# %% tags=["stub"] exercise="09.3"
def ring_all_reduce(x: torch.Tensor) -> None:
    """Sum x over all ranks, in place. x [L], L divisible by the number of ranks."""
    ...


# %% tags=["solution"] exercise="09.3"
def ring_all_reduce(x: torch.Tensor) -> None:
    """Sum x over all ranks, in place. x [L], L divisible by the number of ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, received = x.chunk(n), torch.empty_like(x.chunk(n)[0])  # n parts of [L / n]

    def pass_on(give: int, take: int, add: bool) -> None:
        sending = dist.isend(parts[give % n].clone(), (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        parts[take % n].copy_(parts[take % n] + received if add else received)

    for step in range(n - 1):  # after this, part rank + 1 is finished here
        pass_on(rank - step, rank - step - 1, add=True)
    for step in range(n - 1):  # the finished parts go round
        pass_on(rank + 1 - step, rank - step, add=False)


# %% tags=["check"] exercise="09.3"
check("09.3", ring_all_reduce)

# %% [markdown]
# ### 09.4 From which size does bandwidth rule?
# On the link of 09.1, with 16 ranks: the buffer at which latency and bandwidth take the same time, in KiB. A gradient bucket that is much smaller wastes the link.

# %% tags=["stub"] exercise="09.4"
answer_4 = ...

# %% tags=["solution"] exercise="09.4"
answer_4 = 16 * 10e-6 * 25e9 / 1024  # n · α / β

# %% tags=["check"] exercise="09.4"
check("09.4", answer_4)

# %% [markdown]
# ### 09.5 Which one?
# Name the collective: `broadcast`, `reduce`, `all-reduce`, `all-gather`, `reduce-scatter` or `all-to-all`.
#
# - **A** Every rank has its own gradients; every rank needs the sum of all of them.
# - **B** Every rank keeps a part of the weights; before a layer runs, every rank needs the whole layer.
# - **C** Every rank has gradients for a whole layer; each needs the sum of its own part only.
# - **D** Every rank has tokens for every other rank's expert.
# - **E** Rank 0 has read a checkpoint, and all ranks are to begin from it.

# %% tags=["stub"] exercise="09.5"
answer_5 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}

# %% tags=["solution"] exercise="09.5"
answer_5 = {"A": "all-reduce", "B": "all-gather", "C": "reduce-scatter", "D": "all-to-all", "E": "broadcast"}

# %% tags=["check"] exercise="09.5"
check("09.5", answer_5)

# %% [markdown]
# ### 09.6 Agree to stop
# This training stops early, and sometimes hangs for ever when it should have stopped. Each rank has its own validation loss, and the decision is made from `loss`, which only rank 0 has the mean of. Mend it: every rank returns the same decision, made from the mean over all ranks, with one collective and no more.
#
# ```python
# def should_stop(loss: torch.Tensor, best: float) -> bool:
#     dist.reduce(loss, dst=0)
#     loss /= dist.get_world_size()
#     return loss.item() > best
# ```

# %% tags=["stub"] exercise="09.6"
def should_stop(loss: torch.Tensor, best: float) -> bool:
    """True on every rank where the mean of `loss` (a scalar tensor) over the ranks is above `best`."""
    ...


# %% tags=["solution"] exercise="09.6"
def should_stop(loss: torch.Tensor, best: float) -> bool:
    """True on every rank where the mean of `loss` (a scalar tensor) over the ranks is above `best`."""
    total = loss.clone()
    dist.all_reduce(total)  # the same bits on every rank, so the same branch
    return (total / dist.get_world_size()).item() > best


# %% tags=["check"] exercise="09.6"
check("09.6", should_stop)

# %% [markdown]
# ### 09.7 Two nodes are fast
# Before renting 64 nodes, the team benchmarks an all-reduce on two of them: it reaches the network's full bandwidth, 50 GB/s a node. What does that say about the 64?
#
# - `a`: the same bus bandwidth is to be expected, since it does not depend on the number of ranks
# - `b`: it will be 32 times slower
# - `c`: little: two neighbours may share one switch, and 64 meet at links that two never load together
# - `d`: nothing at all, because two nodes use a tree and 64 use a ring
#
# The 64 hang on eight switches of eight nodes, and each switch has four links upwards of 50 GB/s each. How many GB/s has a node when all nodes send to nodes of other switches at once? And when the 64 are a ring, in the order of the switches, each sending to the next?

# %%
question("09.7")

# %% tags=["stub"] exercise="09.7"
answer_7 = {"what": ..., "all at once, GB/s a node": ..., "a ring in order, GB/s a node": ...}

# %% tags=["solution"] exercise="09.7"
answer_7 = {"what": "c", "all at once, GB/s a node": 4 * 50 / 8, "a ring in order, GB/s a node": 50}

# %% tags=["check"] exercise="09.7"
check("09.7", answer_7)

# %% [markdown]
# ### 09.8 What carries it?
# Lines from five runs on nodes of eight H100, with NVLink inside and an InfiniBand card of 400 Gbit/s for each GPU between them. What does each say?
#
# - **A** `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`
# - **B** `Channel 09 : 6[6] -> 7[7] via SHM/direct/direct`
# - **C** `Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0`
# - **D** `Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3`
# - **E** `Channel 01/0 : 3[3] -> 8[0] [send] via NET/IB/2/GDRDMA`
#
# `as it should be`, `no way from GPU to GPU`, `no way from GPU to network card`, `no InfiniBand`. And by bandwidth alone, how many ms does a ring over 16 GPUs take for 2 GiB in **E**, and in **C**, where the interface is that of the login network, with 10 Gbit/s?

# %% tags=["stub"] exercise="09.8"
answer_8 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "E, ms": ..., "C, ms": ...}

# %% tags=["solution"] exercise="09.8"
answer_8 = {"A": "as it should be", "B": "no way from GPU to GPU", "C": "no InfiniBand",
            "D": "no way from GPU to network card", "E": "as it should be",
            "E, ms": 2 * 15 / 16 * 2**31 / 50e9 * 1e3, "C, ms": 2 * 15 / 16 * 2**31 / 1.25e9 * 1e3}

# %% tags=["check"] exercise="09.8"
check("09.8", answer_8)

# %% [markdown]
# ## When it breaks
# The run stands still. No error, no output; on a GPU the utilisation is at 100 %, because NCCL waits by spinning. Half an hour later a watchdog ends it and names a collective that every rank, according to the code, has called.
#
# Here one rank takes another branch. `ranks.run` has a deadline, and says at its end who waits where:

# %% tags=["nbval-ignore-output"]
def each_judges_alone() -> None:
    loss = 0.5 + 0.1 * dist.get_rank()  # each rank has a loss of its own
    if loss < 0.55:
        dist.all_reduce(torch.ones(1))  # only rank 0 comes here
    dist.barrier()


try:
    ranks.run(each_judges_alone, 2, timeout=4)
except ranks.RankError as error:
    print(error)

# %% [markdown]
# Both ranks wait, in *different* calls: that is what a mismatch looks like, and no time-out cures it. The rule that prevents it is short: **a branch around a collective must be decided by something that every rank has, bit for bit.** A loss that was reduced to one rank only is not that; an `all_reduce` of it is.
#
# The other kind of hang has one rank in no collective at all: it crashed, or it still reads data. Then the report shows it somewhere else in the code, and that line is where to look. On a real cluster the same two questions are asked of each rank's stack (`py-spy dump`) or of NCCL's flight recorder (`TORCH_FR_BUFFER_SIZE`).

# %% [markdown]
# ## Explain it
# Without notes: **why does a ring's traffic a rank hardly grow with the number of ranks, and what does grow?** Then:
#
# 1. Which two collectives make an all-reduce, and what does each rank hold between them?
# 2. A log shows half the algorithm bandwidth on 16 ranks that it showed on 2. Has anything become slower?
# 3. Gradients are sent in buckets. What is wrong with very small ones, and with a single one?
# 4. Two ranks wait in different calls. What kind of line in the code do you look for?
# 5. Two nodes reach half of what was promised. Which two numbers do you fit, and which lines of a log do you read first?

# %% [markdown]
# ## Take away
# > **A ring sends $2(n-1)/n$ of the buffer from each rank, in $2(n-1)$ messages.** Bytes stay, messages grow.
#
# > **Two numbers, one turn.** Below $n\alpha/\beta$ latency rules, above it bandwidth; hold bus bandwidth, not algorithm bandwidth, against the link.
#
# > **A branch around a collective is decided by what every rank has.** Otherwise they wait for each other, in different calls.
#
# Reading: nccl-tests' *PERFORMANCE.md* on the two bandwidths; Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication Operations in MPICH* (2005), for trees and rings. Next: 10, where the gradients are agreed on while the backward pass still runs.
