# %% [markdown]
# # 10 · Data parallel
#
# How replicas of a model stay equal, what agreeing costs a step, and how much of it the backward pass can hide.
#
# **Minutes** 90 · **Hardware** cpu, gpus, nodes · **Needs** 05, 09
#
# After this lesson you can
#
# - average gradients over ranks in four ways, and show that one process would have had the same;
# - say when a bucket's all-reduce starts, and predict a step's time from the link, the buckets and the backward pass;
# - accumulate micro-batches, count tokens and normalise batches so that the ranks agree;
# - tell by its symptom whether parameters, batches or samples are unequal among ranks;
# - read scaling efficiency off a table, and say what it leaves out.

# %%
import contextlib
import copy
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from gpucourse import check, compare, guess, hint, question, ranks, solution, watch
from gpucourse.catalog import GiB, KiB, MiB, gpu, published, shape
from gpucourse.catalog.links import link
from gpucourse.evidence import column, columns_text
from gpucourse.live.timeline import timeline
from gpucourse.predict import link as cost
from gpucourse.predict import parameters
from gpucourse.predict.steptime import ceiling, step_time

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # 0: as many ranks as there are GPUs, or two processes on a CPU
seed: int = 0  # of the weights and of the data

# %% [markdown]
# ## The question
# A second GPU halves the time of an epoch: each takes half of the samples, and after every step they average their gradients. That was in the same machine. Now the two are in different ones, and a step takes longer than on a single GPU. The profile shows the GPU idle at the end of every step, while the network, idle until then, carries the gradients. Somebody adds `bucket_cap_mb=1000`, because "large messages are efficient". It gets no better.

# %% tags=["nbval-check-output"]
count = parameters(shape("gpt2-xl")).total
wait = cost.seconds("all-reduce", 4 * count, 2, link("ethernet-100"))
print(f"gpt2-xl: {4 * count / GiB:.2f} GiB of fp32 gradients, {wait:.2f} s for an all-reduce of two ranks "
      f"over {link('ethernet-100').title}, computed")

# %% [markdown]
# The bytes cannot be avoided. When they travel can be chosen.

# %% [markdown]
# ## Predict
# Below, a model of eight layers takes 40 ms forward and 80 ms backward. Each layer has 1 MiB of gradients, and the last layer's are ready first. The link between two ranks carries 0.125 GB/s and takes 0.5 ms for each message. Write down how long a step takes, in ms, from the start of forward until all gradients have been averaged: with one bucket of 8 MiB, and with eight of 1 MiB.

# %%
mine = guess("10.g1", {"one bucket": ..., "eight buckets": ...}, "ms")

# %% [markdown]
# ## Mechanism
# ### What keeps replicas equal
# Nothing compares the weights. Ranks begin with the same weights, take the *mean* of their gradients, and let the same optimizer do the same arithmetic: so they stay equal, by induction. Whatever breaks one step of the induction breaks all that follow, and no error is raised.
#
# The mean of the ranks' gradients is the gradient of the whole batch, if every rank's loss is a mean over equally many samples. Three ways to take it. Each of the functions prepares a model before backward and returns what is to be called after it.

# %%
def one_by_one(model):
    """An all-reduce for each parameter, when backward is done."""
    def finish():
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    return finish


def flat(model):
    """One all-reduce of everything, when backward is done."""
    def finish():
        gradients = [p.grad for p in model.parameters()]
        buffer = torch.cat([g.flatten() for g in gradients])  # [N], all parameters in one vector
        dist.all_reduce(buffer)
        parts = (buffer / dist.get_world_size()).split([g.numel() for g in gradients])
        for g, part in zip(gradients, parts, strict=True):
            g.copy_(part.view_as(g))
    return finish


# %% [markdown]
# The third does not wait for the end. Backward makes gradients one after another, the last layer's first; a hook is called when a parameter's gradient is complete, and the all-reduce can start there and then. `async_op=True` returns a handle instead of waiting.

# %%
def hooked(model):
    """An all-reduce for each parameter, started while backward runs."""
    flying = []

    def start(p):
        flying.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish():
        for p, work in flying:
            work.wait()
            p.grad /= dist.get_world_size()
        flying.clear()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(start)
    return finish


# %% [markdown]
# Torch's `DistributedDataParallel` does the fourth: hooks that fill *buckets*, and an all-reduce when a bucket is full. All four on real ranks, in fp64, beside one process that has the whole batch.

# %%
def network() -> torch.nn.Sequential:
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers).double()


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])  # [N]


# %%
def one_step(seed: int, prepare) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """On one rank: its gradient, one process's, all-reduces in all, and those that began during backward."""
    torch.manual_seed(seed)
    model = network().to(ranks.device())
    x = torch.randn(8 * dist.get_world_size(), 64).double().to(ranks.device())  # x [8 n, 64], the same everywhere
    alone = copy.deepcopy(model)
    alone(x).square().mean().backward()
    my = x.chunk(dist.get_world_size())[dist.get_rank()]  # [8, 64]
    replica = DistributedDataParallel(model, bucket_cap_mb=0.1) if prepare is None else model
    finish = (lambda: None) if prepare is None else prepare(model)
    for _ in range(2):  # DDP arranges its buckets by the order that it saw in the first backward pass
        model.zero_grad()
        with ranks.counting() as seen:
            replica(my).square().mean().backward()
            during = seen.count()
            finish()
    return gradient(model), gradient(alone), seen.count(), during


# %% tags=["nbval-check-output"]
def four_ways(seed: int) -> dict:
    return {name: one_step(seed, prepare) for name, prepare in
            (("one by one", one_by_one), ("flat", flat), ("hooked", hooked), ("DDP, buckets of 100 kB", None))}


results = ranks.run(four_ways, world_size or 2, seed)
table = [["", "all-reduces", "begun during backward", "ranks equal", "off one process by less than"]]
for name, (got, alone, calls, during) in results[0].items():
    assert all(torch.equal(got, result[name][0]) for result in results)
    assert (got - alone).abs().max() < 1e-12
    table.append([name, f"{calls}", f"{during}", "to the bit", "1e-12"])
print(columns_text(table))

# %% [markdown]
# The values agree to the last rounding. What differs is how many messages pay the latency, and how many could travel while there was still work. One by one has many messages and no overlap; flat has one message and no overlap; hooked has overlap and many messages. Buckets are the compromise, and it has an optimum.
#
# ### When a step ends
# A bucket can leave when its last gradient is there, and when the link is free. With $B$ buckets of equal size that is a loop of three lines.

# %% tags=["nbval-check-output"]
slow, forward, backward, size = link("0.125:500"), 0.040, 0.080, 8 * MiB


def step_seconds(buckets: int) -> float:
    """From the start of forward until the last bucket has been averaged, on two ranks."""
    each = cost.seconds("all-reduce", size / buckets, 2, slow)
    end = 0.0
    for full in range(1, buckets + 1):
        end = max(end, forward + backward * full / buckets) + each  # the link carries one after another
    return end


counts = (1, 2, 4, 8, 16, 64, 256)
table = [["buckets", *(f"{buckets}" for buckets in counts)],
         ["step, ms, computed", *(f"{step_seconds(buckets) * 1e3:.0f}" for buckets in counts)]]
print(columns_text(table))

# %% [markdown]
# On the left nothing is hidden. On the right every bucket pays two latencies, and the link is busy with those. In between only the last bucket sticks out: it fills when the first layer's gradient comes, and nothing is left to hide it behind. DDP's default is 25 MiB a bucket, and a smaller first one, so that the link starts early.
#
# ### Accumulating: which micro-batch synchronises
# With several micro-batches a step, averaging after each is wasted: nothing reads the gradients before the last. `no_sync()` switches DDP's hooks off. Two ranks, two micro-batches each, a model of one weight whose gradient is its input. Rank 0 sees 1 and 2, rank 1 sees 3 and 5; the mean of the ranks' sums is 5.5.

# %% tags=["nbval-check-output"]
def window(synchronise: int) -> float:
    """This rank's gradient after two micro-batches, of which one synchronises."""
    weight = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    for place, value in enumerate([[1.0, 2.0], [3.0, 5.0]][dist.get_rank()]):
        with contextlib.nullcontext() if place == synchronise else weight.no_sync():
            weight(torch.tensor([[value]])).sum().backward()
    return weight.module.weight.grad.item()


for name, place in (("last", 1), ("first", 0)):
    print(f"the {name} micro-batch synchronises: ranks hold {' and '.join(map(str, ranks.run(window, 2, place)))}")

# %% [markdown]
# `if i % accumulate == 0` was meant to say "every so often" and says "the first" (modelscope/FunASR#3472). The ranks take different steps from there on; the loss still falls, on each of them. An assertion costs one small all-reduce now and then: the sum of the weights must be the same everywhere.
#
# ### Counting: a mean of the ranks' means
# DDP averages what the ranks hand over. Where the ranks have trained on different numbers of tokens, the mean of their means is not the mean (case C01, lesson 05). Rank 0 has 10 tokens whose gradient is 1, rank 1 has 100 whose gradient is 2.

# %% tags=["nbval-check-output"]
def token_mean(weighted: bool) -> float:
    tokens, value = [(10, 1.0), (100, 2.0)][dist.get_rank()]
    total = torch.tensor(float(tokens))
    dist.all_reduce(total)
    divisor = total / dist.get_world_size() if weighted else tokens
    weight = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    (weight(torch.full((tokens, 1), value)).sum() / divisor).backward()
    return weight.module.weight.grad.item()


print(f"one process with all tokens {(10 * 1 + 100 * 2) / 110:.4f}")
for name, weighted in (("each rank its mean", False), ("by the tokens of all ranks", True)):
    print(f"{name} {ranks.run(token_mean, 2, weighted)[0]:.4f}")

# %% [markdown]
# ### Normalising: statistics of whose batch
# A batch norm sees the rows of its own rank. With two images a GPU its statistics are those of two images, and the model is another than the one that trained on sixteen. The ranks' variances cannot simply be averaged:

# %% tags=["nbval-check-output"]
a, b = torch.tensor([1.0, 3.0]), torch.tensor([5.0, 9.0])  # the rows of two ranks
apart = (a.var(correction=0) + b.var(correction=0)) / 2
print(f"variance: rank 0 {a.var(correction=0):.2f}, rank 1 {b.var(correction=0):.2f}, their mean {apart:.2f}, "
      f"of all rows {torch.cat([a, b]).var(correction=0):.2f}")

# %% [markdown]
# What can be added up is the sum, the sum of squares and the number of rows. `torch.nn.SyncBatchNorm` exchanges such numbers, on GPUs only; on a CPU it refuses. Its all-reduce has to let gradients through, since a row of one rank changes what the rows of all others are normalised by: 10.3. A transformer has none of this problem: its norms are over a token's own features, and advice to "enable SyncBatchNorm" does not apply to it.
#
# ### Dealing: who reads which sample
# `DistributedSampler` deals samples out so that all ranks get equally many, because a rank with one batch less makes the others wait for ever. Ten samples on four ranks:

# %% tags=["nbval-check-output"]
table = [["", *(f"rank {rank}" for rank in range(4))]]
for name, drop in (("default", False), ("drop_last=True", True)):
    dealt = [list(DistributedSampler(range(10), 4, rank, shuffle=False, drop_last=drop)) for rank in range(4)]
    table.append([name, *(" ".join(map(str, of)) for of in dealt)])
print(columns_text(table))
shuffled = DistributedSampler(range(10), 4, 0, seed=seed)
first = list(shuffled)
same = list(shuffled) == first
shuffled.set_epoch(1)
print(f"two epochs in the same order: {same}; after set_epoch(1): {list(shuffled) == first}")

# %% [markdown]
# The default repeats samples 0 and 1. In training that hardly matters; an evaluation counts them twice, and its result changes with the number of ranks. And without `set_epoch` every epoch has the same order.
#
# ### Parameters that nothing reaches
# A bucket waits for *all* of its gradients. A layer that is built in the constructor and no longer used in `forward` never sends its own, so its bucket never fills; one process trains on without noticing. DDP says so one step later, when the next forward pass begins:

# %% tags=["nbval-ignore-output"]
class Leftover(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.old_head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):  # old_head was commented out here, and stayed above
        return self.used(x)


def train_leftover() -> None:
    model = DistributedDataParallel(Leftover())
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()


try:
    ranks.run(train_leftover, 2, timeout=20)
except ranks.RankError as error:
    print(str(error).partition(", and by")[0], "…")

# %% tags=["nbval-check-output"]
alone = Leftover()
alone(torch.randn(2, 4)).sum().backward()
print("grad is None:", [name for name, p in alone.named_parameters() if p.grad is None])

# %% [markdown]
# The message offers `find_unused_parameters=True`: DDP then walks the graph of every forward pass, for something that a deletion cures (ultralytics/ultralytics#5821). The flag is for models whose path depends on the data.
#
# ### Sending less
# What travels can be made smaller on the way. A communication hook sees a full bucket and returns what is to be put in its place; torch has several. This one sends fp16:

# %% tags=["nbval-check-output"]
def bytes_sent(hook) -> float:
    model = DistributedDataParallel(torch.nn.Linear(256, 256, bias=False))
    if hook:
        model.register_comm_hook(None, hook)
    with ranks.counting() as seen:
        model(torch.randn(2, 256)).sum().backward()
    return seen.size("all-reduce")


for name, hook in (("as it is", None), ("fp16_compress_hook", fp16_compress_hook)):
    print(f"{name}: {ranks.run(bytes_sent, 2, hook)[0] / KiB:.0f} KiB in the all-reduce")

# %% [markdown]
# Half of the bytes, and gradients rounded to fp16, with its range: what lesson 04 says about that range applies. bf16 has the range and fewer digits. Hooks that send less still (PowerSGD) change the training, and have to be judged by its loss.

# %% [markdown]
# ## Measure
# Now the overlap, over a paced link. On two cores two computing ranks and the library's own copying would fight for the same cores, and the picture would be noise. So here each layer *sleeps* for the time that an accelerator would compute: 5 ms forward, 10 ms backward. Layers, link: simulated. The processes, DDP, its buckets and hooks: real.

# %% tags=["setup"]
class Takes(torch.autograd.Function):
    """Passes x [B, H] on after `seconds`, and its gradient after twice as long."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        with ranks.span("forward"):
            time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        with ranks.span("backward"):
            time.sleep(2 * ctx.seconds)
        return gradient, None


class Layer(torch.nn.Linear):
    def forward(self, x):
        return Takes.apply(super().forward(x), 0.005)


# %%
def alternate(rounds: int) -> dict[str, dict]:
    """On one rank: seconds of each step with one bucket and with eight, in turn, and the all-reduces of a step."""
    x = torch.randn(4, 512)  # [B, H]; a layer has 512 · 512 fp32 weights: 1 MiB of gradients
    models = {}
    for name, cap in (("one bucket", 1000), ("eight buckets", 1)):
        layers = [Layer(512, 512, bias=False) for _ in range(8)]
        models[name] = model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap)
        for _ in range(2):  # DDP arranges its buckets after the first
            model(x).sum().backward()
    seen = {name: {"seconds": [], "begin": []} for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            dist.barrier()
            begin = time.monotonic()
            model(x).sum().backward()  # returns when all gradients have been averaged
            seen[name]["seconds"].append(time.monotonic() - begin)
    for name, model in models.items():
        with ranks.counting() as counted:
            model(x).sum().backward()
        seen[name]["calls"] = counted.count("all-reduce")
    return seen


# %% tags=["nbval-ignore-output"]
rounds = 7
run = ranks.run(alternate, 2, rounds, link="0.125:500")
seconds = {name: of["seconds"] for name, of in run[0].items()}
for name, of in run[0].items():
    print(f"{name}: {of['calls']} all-reduces a step, {1e3 * statistics.median(of['seconds']):.0f} ms, simulated")
ratio = statistics.median(one / many for one, many in zip(*seconds.values(), strict=True))
print(f"one bucket takes {ratio:.2f} × the time of eight, median of {rounds} rounds in turn")

# %% [markdown]
# The last round, on one clock. Wide bars are the rank, narrow ones its link.

# %% tags=["nbval-ignore-output"]
marks = [span.begin for span in run.timeline[0] if span.name == "forward"]
first = marks[-8 * 4]  # the steps after it: one bucket, eight buckets, and the two that were counted
end = marks[-8 * 2]
timeline(run.timeline, "One bucket waits for all of backward; eight travel while it runs", "simulated",
         begin=first - 0.005, end=end - 0.001)

# %% [markdown]
# ### One rank is late
# The ranks above are equally fast. Real ones are not: a slow disk, a warm card, a neighbour on the same machine. Below, two ranks train a small model, with real arithmetic this time, and half way through, the batches of rank 1 begin to come late, by twice what a step has taken until then. Each rank watches its own loop; the notebook draws a line for each. Before half of the time is over: what will the line of rank 0 do?

# %% tags=["nbval-ignore-output"]
def with_a_late_rank(steps: int) -> None:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(ranks.device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    begin, late = time.perf_counter(), 0.0
    with watch("DDP, rank 1 late from half way") as w:
        for step in range(steps):
            if dist.get_rank() == 1 and step == steps // 2:
                late = 2 * (time.perf_counter() - begin) / step
            time.sleep(late)
            x = torch.randn(32, 512, device=ranks.device())  # [B, H]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            w.step(len(x))


_ = ranks.run(with_a_late_rank, world_size or 2, 50)

# %% [markdown]
# The lines fall together. Nothing is wrong with rank 0: it waits in the all-reduce, in the middle of its own backward pass, until rank 1 has gradients to add. So the whole group runs at the speed of its slowest rank, and a chart of any one rank cannot say which one that is. Ask each rank how long it *waits*: the one that waits least is late. The left plot shows what data parallelism does not touch: every rank holds weights, gradients and optimizer state in full.

# %% [markdown]
# ## Compare

# %% tags=["nbval-ignore-output"]
computed = {name: step_seconds(buckets) * 1e3 for name, buckets in (("one bucket", 1), ("eight buckets", 8))}
compare(mine, column("computed", computed, "ms"),
        column("simulated", {name: statistics.median(times) * 1e3 for name, times in seconds.items()}, "ms",
               "2 ranks, sleeping layers, paced link"))

# %% [markdown]
# What the simulation has more than the arithmetic is what sleeps and hooks cost on this machine: sixteen sleeps a step that each end a little late, and copies into buckets. On a busy machine it is more, and more with eight buckets than with one, since each of them wakes a process that is not always given a core at once. The largest message was the slowest choice: an all-reduce that cannot start before the last gradient has nothing to hide behind, however efficient it is.

# %% [markdown]
# ## At full size
# GPT-2 XL on A100s, four sequences of 1,024 tokens a GPU and micro-batch, fp32 gradients. The backward pass is two thirds of the compute, at the fast end of its interval, which hides least. *Left over* is what the all-reduce has not hidden behind one backward pass; with eight micro-batches accumulated it is paid once for eight times the work.

# %% tags=["nbval-check-output"]
xl, tokens = shape("gpt2-xl"), 4 * 1024
compute = step_time(xl, tokens, 1024, ceiling(gpu("a100-80"))).compute[0]
table = [["computed", "all-reduce, ms", "backward, ms", "left over", "efficiency", "with 8 micro-batches"]]
for name, n in (("nvlink3", 8), ("pcie4", 8), ("ib-400", 64), ("ethernet-100", 64)):
    carried = cost.seconds("all-reduce", 4 * count, n, link(name))
    left = max(0.0, carried - 2 / 3 * compute)
    reached = [f"{passes * compute / (passes * compute + left):.0%}" for passes in (1, 8)]
    table.append([f"{n} ranks, {link(name).title}", f"{carried * 1e3:.0f}", f"{2 / 3 * compute * 1e3:.0f}",
                  f"{left * 1e3:.0f}", *reached])
print(columns_text(table))

# %% [markdown]
# Data parallelism does not fail because of the number of ranks: a ring's bytes a rank hardly grow. It fails when the backward pass is too short for the gradients: few tokens a GPU, many parameters, a slow link. What helps, in this order: more tokens between two synchronisations, fewer bytes, a faster link. What it never does is save memory: each rank keeps everything (lesson 11).
#
# Others have published what became of it. The rows have the same work a GPU, on more and more GPUs: *weak* scaling. Their weights are sharded as well, so more travels than here.

# %% tags=["nbval-check-output"]
rows = published("scaling")
table = [["published, H100", "micro-batch", "GPUs", "tokens/s a GPU", "efficiency"]]
for row in rows:
    base = next(float(r["tokens_per_second_per_gpu"]) for r in rows if r["model"] == row["model"])
    rate = float(row["tokens_per_second_per_gpu"])
    efficiency = cost.scaling_efficiency(base, rate)
    table.append([row["model"], row["micro_batch"], row["gpus"], f"{rate:,.0f}", f"{efficiency:.3f}"])
print(columns_text(table) + f"\n\n{rows[0]['source']}")

# %% [markdown]
# The larger model loses nothing that can be told from the spread of two runs: a value above 1 says how wide that is. The smaller one loses a little, although by bytes alone it should be the other way round, since it has ten times as many tokens a GPU to hide each gradient behind. What it loses the table does not say; a trace would. Efficiency compares a set-up with itself: a slow one that scales perfectly is still slow, and the table of lesson 02's utilisation belongs beside it. *Strong* scaling, the same batch on more GPUs, leaves each of them fewer tokens to hide behind, and ends much earlier.

# %% [markdown]
# ## Exercises
# ### 10.1 Buckets, while backward runs
# Write what DDP does. `bucketed(model, bucket_bytes)` prepares a model and returns `finish`, which is called after each backward pass and leaves the mean over ranks in every `.grad`. Parameters go into buckets in reversed order; a bucket is closed as soon as it holds `bucket_bytes` or more. A bucket's all-reduce starts when its last gradient is there, not later, and nothing waits inside backward. The check runs two steps on two ranks, compares with DDP and with one process, and counts.

# %% tags=["stub"] exercise="10.1"
def bucketed(model, bucket_bytes: int):
    """Attach the hooks; return finish(), to be called after backward."""
    ...


# %% tags=["solution"] exercise="10.1"
def bucketed(model, bucket_bytes: int):
    """Attach the hooks; return finish(), to be called after backward."""
    buckets, flying = [[]], []
    for p in reversed(list(model.parameters())):
        if sum(q.nbytes for q in buckets[-1]) >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(p)
    missing = [len(bucket) for bucket in buckets]

    def ready(place):
        missing[place] -= 1
        if missing[place] == 0:
            buffer = torch.cat([q.grad.flatten() for q in buckets[place]])  # [the bucket's elements]
            flying.append((buckets[place], buffer, dist.all_reduce(buffer, async_op=True)))

    def finish():
        for bucket, buffer, work in flying:
            work.wait()
            parts = (buffer / dist.get_world_size()).split([q.numel() for q in bucket])
            for q, part in zip(bucket, parts, strict=True):
                q.grad.copy_(part.view_as(q))
        flying.clear()
        missing[:] = [len(bucket) for bucket in buckets]

    for place, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(lambda _, place=place: ready(place))
    return finish


# %% tags=["check"] exercise="10.1"
check("10.1", bucketed)

# %% [markdown]
# ### 10.2 Synchronise once
# Without DDP: leave in `.grad` the gradient of the window's mean, averaged over the ranks, and synchronise once in the window. `window` is a list of `(x, y)` with equally many samples; `loss_of(model, x, y)` is a mean over them. One all-reduce a parameter is allowed. Let hooks start them in the right backward pass, and leave no hook on the model.

# %% tags=["stub"] exercise="10.2"
def accumulate(model, window: list, loss_of) -> None:
    """The gradient of the mean over the window and the ranks, in .grad, which is None before."""
    ...


# %% tags=["solution"] exercise="10.2"
def accumulate(model, window: list, loss_of) -> None:
    """The gradient of the mean over the window and the ranks, in .grad, which is None before."""
    def average(p):
        dist.all_reduce(p.grad)  # what has gathered, with the last micro-batch's part
        p.grad /= dist.get_world_size()

    handles = []
    for place, (x, y) in enumerate(window):
        if place == len(window) - 1:
            handles = [p.register_post_accumulate_grad_hook(average) for p in model.parameters()]
        (loss_of(model, x, y) / len(window)).backward()
    for handle in handles:
        handle.remove()


# %% tags=["check"] exercise="10.2"
check("10.2", accumulate)

# %% [markdown]
# ### 10.3 Batch norm over all ranks
# Normalise each column of `x` [rows, C] by its mean and variance over the rows of *all* ranks, which may have different numbers of them. `functional.all_reduce(tensor, "sum", dist.group.WORLD)` gives the sum and lets gradients through. One collective forward, one backward.

# %% tags=["stub"] exercise="10.3"
def synchronised_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, C] → the same shape, with mean 0 and variance 1 over the rows of all ranks."""
    ...


# %% tags=["solution"] exercise="10.3"
def synchronised_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, C] → the same shape, with mean 0 and variance 1 over the rows of all ranks."""
    channels = x.shape[1]
    mine = torch.cat([x.sum(0), x.square().sum(0), x.new_full((1,), len(x))])  # [2 C + 1]
    total = functional.all_reduce(mine, "sum", dist.group.WORLD)
    sums, squares, rows = total.split([channels, channels, 1])
    mean = sums / rows
    variance = squares / rows - mean.square()
    return (x - mean) / (variance + eps).sqrt()


# %% tags=["check"] exercise="10.3"
check("10.3", synchronised_norm)

# %% [markdown]
# ### 10.4 The tokens of all ranks
# `losses` [T] are this rank's losses, one a token; `trained` [T] is True where a token counts. Return the scalar to call `backward()` on, so that DDP's gradient is that of the mean over the trained tokens of all ranks. A rank may have none. One collective, of one number.

# %% tags=["stub"] exercise="10.4"
def token_loss(losses: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """The scalar whose gradient, averaged over ranks, is that of the mean over all trained tokens."""
    ...


# %% tags=["solution"] exercise="10.4"
def token_loss(losses: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """The scalar whose gradient, averaged over ranks, is that of the mean over all trained tokens."""
    tokens = trained.sum().to(losses.dtype)
    dist.all_reduce(tokens)
    return losses[trained].sum() * dist.get_world_size() / tokens


# %% tags=["check"] exercise="10.4"
check("10.4", token_loss)

# %% [markdown]
# ### 10.5 What nothing reaches
# Before a model goes to DDP: return the names (of `named_parameters`) for which DDP would wait in vain, from one forward and backward pass of `model(x).sum()`. The model may come with gradients of an earlier pass, with frozen parameters, and with gradients that happen to be zero.

# %% tags=["stub"] exercise="10.5"
def never_reached(model, x: torch.Tensor) -> list[str]:
    """Names of the parameters that would keep a bucket from filling."""
    ...


# %% tags=["solution"] exercise="10.5"
def never_reached(model, x: torch.Tensor) -> list[str]:
    """Names of the parameters that would keep a bucket from filling."""
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


# %% tags=["check"] exercise="10.5"
check("10.5", never_reached)

# %% [markdown]
# ### 10.6 One batch more
# This epoch hangs when the ranks have different numbers of batches. Mend it: every rank takes all of its batches, each step takes the mean over the ranks that still have one, and all ranks end with the same weights. `batches` is a stream: its length is not known.
#
# ```python
# def epoch(ddp, optimizer, batches, loss_of) -> None:
#     for x, y in batches:
#         optimizer.zero_grad()
#         loss_of(ddp, x, y).backward()
#         optimizer.step()
# ```

# %% tags=["stub"] exercise="10.6"
def epoch(ddp, optimizer, batches, loss_of) -> None:
    """Train on every batch of every rank."""
    ...


# %% tags=["solution"] exercise="10.6"
def epoch(ddp, optimizer, batches, loss_of) -> None:
    """Train on every batch of every rank."""
    with Join([ddp], divide_by_initial_world_size=False):
        for x, y in batches:
            optimizer.zero_grad()
            loss_of(ddp, x, y).backward()
            optimizer.step()


# %% tags=["check"] exercise="10.6"
check("10.6", epoch)

# %% [markdown]
# ### 10.7 Four times the GPUs
# A report of weak scaling from 128 to 512 H100 gives tokens/s a GPU: a 1B model 44,123 and then 39,837, a 7B model 10,475 and 9,670, a 70B model 1,058 and 1,007. Give the three efficiencies. And for the 1B: how much did each of the 384 added GPUs add to the whole, as a fraction of what one GPU did on 128?

# %% tags=["stub"] exercise="10.7"
answer_7 = {
    "efficiency, 1B": ...,
    "efficiency, 7B": ...,
    "efficiency, 70B": ...,
    "1B: worth of an added GPU": ...,
}

# %% tags=["solution"] exercise="10.7"
answer_7 = {
    "efficiency, 1B": 39_837 / 44_123,
    "efficiency, 7B": 9_670 / 10_475,
    "efficiency, 70B": 1_007 / 1_058,
    "1B: worth of an added GPU": (512 * 39_837 - 128 * 44_123) / 384 / 44_123,
}

# %% tags=["check"] exercise="10.7"
check("10.7", answer_7)

# %% [markdown]
# ### 10.8 The same model, another accuracy
# One checkpoint is evaluated with `DistributedSampler` on a test set of 1,000 samples: on 8 ranks, and again on 32. Each is repeatable, and they differ in the third digit. Why? And how many samples are counted twice on 8, on 32 and on 48 ranks?
#
# - `a`: gradients are added in another order on 8 ranks, so the weights differ
# - `b`: the sampler repeats samples until all ranks have as many, and these count twice
# - `c`: dropout draws other masks on each rank
# - `d`: each rank has batch statistics of its own

# %%
question("10.8")

# %% tags=["stub"] exercise="10.8"
answer_8 = {"why": ..., "8 ranks: counted twice": ..., "32 ranks: counted twice": ..., "48 ranks: counted twice": ...}

# %% tags=["solution"] exercise="10.8"
answer_8 = {"why": "b", **{f"{n} ranks: counted twice": -(-1000 // n) * n - 1000 for n in (8, 32, 48)}}

# %% tags=["check"] exercise="10.8"
check("10.8", answer_8)

# %% [markdown]
# ## When it breaks
# An epoch is over, validation should begin, and nothing moves. The watchdog ends the run after half an hour and names an all-reduce of *one element*: last enqueued 19, last completed 18 (pytorch/pytorch#141069). Nobody has written an all-reduce of one element. It is what a barrier is made of on NCCL, and the barrier belongs to the next phase.
#
# The data are a stream, and one rank's part of it had a batch more.

# %% tags=["nbval-ignore-output"]
def train_then_validate() -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    batches = 3 + (dist.get_rank() == 0)
    for _ in range(batches):
        model(torch.randn(2, 4)).sum().backward()
    dist.barrier()  # validation begins


try:
    ranks.run(train_then_validate, 2, timeout=6)
except ranks.RankError as error:
    print(error)

# %% [markdown]
# The rank that is "still running" stands in a backward pass, where DDP waits, out of Python's sight, for gradients that nobody sends; the other waits in the first collective after the loop. The phase that hangs is not the one that is wrong. So ask of a hang at the start of a phase: **did all ranks make equally many steps in the one before?** Count them, and all-reduce the count.
#
# Three cures. Deal equal counts, with a sampler that pads or drops. Stop when the first rank stops: all-reduce a flag before each step, and lose what is left. Or let `Join` play the missing all-reduces with zeros, and choose by what to divide: by default all ranks, which makes the last steps small; 10.6 divides by those that had data. A longer time-out is not among the cures.

# %% [markdown]
# ## Explain it
# Without notes: **why do replicas stay equal although nothing compares them, and what is the smallest change that makes them drift?** Then:
#
# 1. When does a bucket's all-reduce start? Which bucket can never be hidden?
# 2. A bucket of 1 GB makes efficient messages. Why is the step slower?
# 3. Two ranks, two micro-batches, the first one synchronises. What does each rank hold?
# 4. A sum of losses is divided by the tokens of all ranks. What does DDP do to it, and what is missing?
# 5. Efficiency is 0.95. What does it not say?

# %% [markdown]
# ## Take away
# > **Same start, same mean, same optimizer.** The induction has no check: add one, a sum of the weights over the ranks now and then.
#
# > **What counts is when bytes travel.** A step ends with max(backward, link) and the last bucket; one bucket hides nothing.
#
# > **Whatever is unequal among ranks is paid for:** tokens by a wrong mean, batches by a hang, samples by a wrong evaluation, parameters by a bucket that never fills, one rank's seconds by all ranks.
#
# Reading: Li and others, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training* (2020), on buckets and their order; the notes on `no_sync`, `Join` and communication hooks in torch's documentation. Next: 11, where the replicas stop keeping copies.
