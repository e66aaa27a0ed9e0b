# %% [markdown]
# # 11 · Sharded data parallel
#
# What copies of a model need not keep, what it costs to fetch it when it is needed, and what runs under which name.
#
# **Minutes** 90 · **Hardware** cpu, gpus, nodes · **Needs** 01, 09
#
# After this lesson you can
#
# - compute, for each ZeRO stage, the bytes a parameter on a rank at rest and the bytes it sends in a step;
# - say what PyTorch runs under the name of a stage, and where that differs from the paper;
# - predict the peak of a wrapping: by block, in one unit, with weights kept after the forward pass;
# - choose between DDP and FSDP for a model, a card, a link and a batch, and see when neither helps;
# - find an optimizer that updates nothing and a checkpoint that was written twice.

# %%
import io
import os
import tempfile
from itertools import cycle

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from gpucourse import check, compare, draw, dryrun, guess, hint, predict, question, ranks, solution
from gpucourse.catalog import GiB, Job, Layout, MiB, gpt, pick, published, shape
from gpucourse.evidence import column, columns_text
from gpucourse.live.stacks import Stacks
from gpucourse.measure import on_rank
from gpucourse.models import Training
from gpucourse.models.parallel import laid_out
from gpucourse.predict.traffic import data_parallel, sent

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # 0: two ranks, on the CPU also where there are GPUs: allocator events are the CPU's
seed: int = 0  # of the weights and of the text

# %% [markdown]
# ## The question
# A model of 13 billion parameters is to train on eight cards of 80 GB: 640 GB together. In bf16 with an fp32 master copy it needs 16 bytes a parameter. Data parallel gives every card the whole of it, and the first rank fails before the first batch. Seven more cards have not made one byte of room.

# %% tags=["nbval-check-output"]
model_13b = shape("llama-2-13b")
mixed = Job(micro_batch=1, seq=512, precision="bf16-master", recompute="full")
states = sum(predict.memory(model_13b, mixed).states().values())
print(f"{model_13b.name}: {states / GiB:.1f} GiB of weights, gradients and optimizer state, on each of 8 ranks: "
      f"{8 * states / GiB:.0f} GiB, to hold {states / GiB:.0f}")

# %% [markdown]
# ## Predict
# Below, two ranks train a small model with AdamW, 32 tokens at a time, in four ways. DDP keeps everything on both. Write down the most memory that *one* rank will have allocated at once in each, in MiB. A hint at the size: everything together, on one process, takes 20 bytes a parameter at its peak, in `step()`.

# %%
small = pick(profile,
             smoke=gpt("small", layers=4, hidden=192, heads=4, vocab=256, context=256),
             lab=gpt("small", layers=6, hidden=256, heads=4, vocab=256, context=256),
             full=gpt("small", layers=12, hidden=512, heads=8, vocab=256, context=256))
count = world_size or 2
job = Job(micro_batch=1, seq=32, layout=Layout(dp=count))
print(f"{predict.parameters(small).total:,} parameters on {count} ranks: {small.layers} layers, hidden {small.hidden}")

# %%
mine = guess("11.g1", {"DDP": ..., "ZeRO-1": ..., "FSDP, weights kept": ..., "FSDP": ...}, "MiB")

# %% [markdown]
# ## Mechanism
# ### Why keep N copies?
# A rank of DDP holds four things a parameter: weight, gradient, and two moments of AdamW. Ask of each when the *whole* of it is needed on one rank.
#
# The moments: never. An element of the optimizer's state meets its own gradient and its own weight and nothing else; if rank 3 updates the third part of the weights, nobody else needs the third part of the moments. The gradient: only until it is added up. Rank 3 needs the sum of its part. The weights: all of them, but not at once; a layer's are needed while that layer runs, once forward and once backward.
#
# Those three answers are the three stages of ZeRO. At rest, with $N$ ranks:

# %% tags=["nbval-check-output"]
stages = {"DDP": "none", "ZeRO-1: optimizer": "zero1", "ZeRO-2: and gradients": "zero2", "ZeRO-3: and weights": "zero3"}
total = predict.parameters(model_13b).total
table = [["bytes a parameter, computed", *(f"N = {n}" for n in (8, 64)), f"{model_13b.name}, N = 8, GiB"]]
for name, stage in stages.items():
    held = [sum(predict.memory(model_13b, mixed.but(layout=Layout(dp=n, shard=stage))).states().values())
            for n in (8, 64)]
    table.append([name, *(f"{size / total:.2f}" for size in held), f"{held[0] / GiB:.1f}"])
print(columns_text(table))

# %% [markdown]
# Read the second column against the first. Stage 1 falls from sixteen bytes towards four and stays there, since weights and gradients are whole; stage 2 towards two; only stage 3 goes on falling. Activations are in none of these figures: **sharding divides what belongs to parameters, and leaves what belongs to tokens.**
#
# ### What it costs
# An all-reduce is a reduce-scatter followed by an all-gather (lesson 09). Stage 1 puts the optimizer between the two halves: reduce-scatter the gradients, update your part, all-gather the *weights*. The bytes are the same. Stage 3 gathers the weights twice, before forward and before backward, so it sends half as much again; and where gradients are accumulated it does so for every micro-batch, while DDP can wait for the last. (Stage 2 cannot wait either: what is not yet added up cannot be handed out.)

# %% tags=["nbval-check-output"]
table = [["sent by a rank of 8, bytes a parameter, fp32", "1 micro-batch", "8 micro-batches"]]
for name, stage in stages.items():
    a_step = [sent(data_parallel(total, 8, stage, gradient=4, weight=4, passes=passes)) / total for passes in (1, 8)]
    table.append([name, *(f"{size:.1f}" for size in a_step)])
print(columns_text(table))

# %% [markdown]
# ### Stage 3 in two calls
# A layer that keeps only its part of $W$ needs one collective on the way in and the opposite one on the way back. Autograd says which: the derivative of "gather the parts" is "add up, and hand out the parts".

# %%
class Gathered(torch.autograd.Function):
    """A rank's part [P / n] → the whole [P]; its gradient [P] → the mean over the ranks of this part [P / n]."""

    @staticmethod
    def forward(ctx, part):
        whole = part.new_empty(part.numel() * dist.get_world_size())
        dist.all_gather_single(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(ctx, gradient):
        part = gradient.new_empty(gradient.numel() // dist.get_world_size())
        dist.reduce_scatter_single(part, gradient.contiguous())
        return part / dist.get_world_size()


# %%
def one_layer() -> float:
    """The largest difference between this rank's gradient and its part of one process's gradient."""
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    w = torch.randn(16 * n, dtype=torch.float64)  # [P] for a matrix [8, P / 8]
    x = torch.randn(n, 5, 8, dtype=torch.float64)  # each rank has its own [5, 8]
    part = w.chunk(n)[rank].clone().requires_grad_()  # [P / n]: all that the rank keeps
    (x[rank] @ Gathered.apply(part).view(8, -1)).square().mean().backward()
    alone = w.clone().requires_grad_()
    (x.flatten(0, 1) @ alone.view(8, -1)).square().mean().backward()
    return (part.grad - alone.grad.chunk(n)[rank]).abs().max().item()


# %% tags=["nbval-check-output"]
worst = max(ranks.run(one_layer, 2))
assert worst < 1e-12
print("the gradient of each part equals one process's, to 1e-12 in fp64")

# %% [markdown]
# This already saves the gradient and the optimizer's state. It does not yet save the weights: the product keeps the gathered $W$ for its own backward. To give it back and gather it *again* is what `fully_shard` does with `reshard_after_forward`, and the one difference between two of the ways below.
#
# ### What runs under the name
# PyTorch has no switch for "stage 2". The names are the paper's; these are the implementations.
#
# | stage | run here | where it differs from the paper |
# |---|---|---|
# | 0 | `DistributedDataParallel` | |
# | 1 | `ZeroRedundancyOptimizer` over DDP | whole parameters go to a rank, not equal slices; gradients are all-reduced although a rank needs only its part, then each weight is broadcast by its owner; DDP's buckets keep the gradients alive through the next forward |
# | 2 | `fully_shard(…, reshard_after_forward=False)` | shards the weights at rest as well: 16/N, not 2 + 14/N; whole weights exist from a block's forward until its backward |
# | 3 | `fully_shard` by block | each parameter is cut along its first dimension; the block's weights are gathered into one buffer, the next block's already while this one runs |

# %% tags=["setup"]
class Replicated(Training):
    """DDP; with layout.shard "zero1" its optimizer's state is divided among the ranks."""

    def __init__(self, shape, job, seed):
        super().__init__(shape, job, seed=seed)
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        if job.layout.shard == "zero1":
            self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=3e-4, foreach=True)

    def loss(self, tokens, targets):
        return F.cross_entropy(self.wrapped(tokens).flatten(0, 1), targets.flatten())


def sharded(shape, job, seed):
    """fully_shard on each block and on the rest; first the model is made, then the optimizer."""
    torch.manual_seed(seed)  # the same weights on every rank
    return Training(shape, job, seed=seed, model=laid_out(shape, job))


def in_one_unit(shape, job, seed):
    torch.manual_seed(seed)
    model = laid_out(shape, job.but(layout=Layout()))
    return Training(shape, job, seed=seed, model=fully_shard(model))


# %%
fsdp = job.but(layout=Layout(dp=count, shard="zero3"))
setups = {
    "DDP": (Replicated, job),
    "ZeRO-1": (Replicated, job.but(layout=Layout(dp=count, shard="zero1"))),
    "FSDP, weights kept": (sharded, fsdp.but(layout=fsdp.layout.but(reshard="never"))),
    "FSDP": (sharded, fsdp),
}

# %% [markdown]
# Same model, same data: then the same training, or it is not a cure. Each way takes three steps of SGD in fp64, on a batch of which each rank has its part; the losses and the weights after them are held against one process that had all of it.

# %% tags=["setup"]
def three_steps(stage: str) -> tuple[list[float], torch.Tensor]:
    """The losses over all ranks' tokens, and all weights after three steps, as one vector."""
    rank, n = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3)).double()
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, 3, dtype=torch.float64)
    x, y = x.chunk(n)[rank], y.chunk(n)[rank]  # [12 / n, 6]
    if stage in ("keep", "reshard"):
        for part in (model[0], model[2], model):
            fully_shard(part, reshard_after_forward=stage == "reshard")
    net = DistributedDataParallel(model) if stage in ("DDP", "ZeRO-1") else model
    parameters = list(model.parameters())
    optimizer = (ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1, momentum=0.9) if stage == "ZeRO-1"
                 else torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    losses = []
    for _ in range(3):
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, torch.cat([getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in parameters])


# %% tags=["nbval-check-output"]
alone_losses, alone = three_steps("alone")
ways = ("DDP", "ZeRO-1", "keep", "reshard")
results = ranks.run(lambda: {stage: three_steps(stage) for stage in ways}, 2)
for stage in ways:
    both = [result[stage] for result in results]
    losses = torch.tensor([losses for losses, _ in both], dtype=torch.float64).mean(0)  # of equal parts
    assert (losses - torch.tensor(alone_losses, dtype=torch.float64)).abs().max() < 1e-12
    assert all((weights - alone).abs().max() < 1e-12 for _, weights in both)
    print(f"{stage:8s} losses, and weights after three steps, equal one process's to 1e-12")

# %% [markdown]
# ## Measure
# Each rank follows its own allocator through a step: where it rises, at which instant, anchored at the storages it holds at the end. gloo frees some buffers on threads of its own, which the profiler does not see; such steps are told by where they begin, and another one is taken.

# %% tags=["setup"]
def measured(setups: dict) -> dict:
    return {name: on_rank.memory(build, small, job, seed) for name, (build, job) in setups.items()}


def on_ranks(setups: dict) -> dict:
    """By name, the memory of the rank that was seen to hold most: a free that was not seen only lowers it."""
    both = ranks.run(measured, count, setups, timeout=120, env={"KINETO_LOG_LEVEL": "99"})
    return {name: max((rank[name] for rank in both), key=lambda memory: memory.peak) for name in setups}


# %% tags=["nbval-ignore-output"]
seen = on_ranks(setups)
ledgers = {name: predict.memory(small, job) for name, (_, job) in setups.items()}
for name in setups:
    print(f"{name:20s} measured peak at {seen[name].peak_at}, computed at {ledgers[name].peak_at}")

# %% [markdown]
# ## Compare

# %% tags=["nbval-ignore-output"]
compare(mine, column("computed", {name: ledger.peak / MiB for name, ledger in ledgers.items()}, "MiB"),
        column("measured", {name: memory.peak / MiB for name, memory in seen.items()}, "MiB", "cpu, allocator events"))

# %% tags=["nbval-ignore-output"]
for name in setups:
    assert abs(seen[name].peak / ledgers[name].peak - 1) < 0.03, name
    assert abs(seen[name].at["step"]["optimizer"] / ledgers[name].states()["optimizer"] - 1) < 0.03, name
print(columns_text([["at rest, before zero_grad, MiB", "weights", "gradients", "optimizer"]] + [
    [name, *(f"{size / MiB:.2f}" for size in (m.at["step"]["weights"], m.also["gradients in step()"],
                                              m.at["step"]["optimizer"]))] for name, m in seen.items()]))

# %% [markdown]
# ZeRO-1 takes half of the moments and half of the list that `foreach` makes in `step()`. The two FSDP rows have the *same* bytes at rest, and different peaks: with weights kept, all of them are gathered when the forward pass ends; without, only the unit that works, the next one on its way, and the embedding's unit, which forward begins and backward ends. With so few tokens that is the peak. What is left between computed and measured in the last row is a buffer of gloo's that lives a little longer than the dry run's.
#
# ### What they send
# Counted on a rank, in one step, against the closed form of the paper's stages:

# %% tags=["nbval-check-output"]
def counted(setups: dict) -> dict:
    """By name and kind of collective: (calls, bytes sent)."""
    found = {}
    for name, (build, job) in setups.items():
        training = build(small, job, seed)
        training(), training()  # DDP arranges its buckets after its first step
        with ranks.counting() as traffic:
            training()
        kinds = dict.fromkeys(call.kind for call in traffic.calls)
        found[name] = {kind: (traffic.count(kind), traffic.sent(kind)) for kind in kinds}
    return found


parameters = predict.parameters(small).total
paper = {"DDP": "none", "ZeRO-1": "zero1", "FSDP, weights kept": "zero2", "FSDP": "zero3"}
table = [["", "the stage, bytes a parameter", "counted", "calls"]]
for name, kinds in ranks.run(counted, count, setups)[0].items():
    expected = sent(data_parallel(parameters, count, paper[name], gradient=4, weight=4)) / parameters
    table.append([name, f"{expected:.2f}", f"{sum(size for _, size in kinds.values()) / parameters:.2f}",
                  ", ".join(f"{kind} {calls}" for kind, (calls, _) in kinds.items())])
print(columns_text(table))

# %% [markdown]
# The popular statement that stage 1 is free holds for the paper's. `ZeroRedundancyOptimizer` pays an all-reduce *and* a broadcast of every weight, one call a tensor. FSDP sends a little less than three halves, because the unit that holds embedding and head is kept from forward to backward; and it makes few calls, because each unit is one buffer.
#
# ### By block or in one unit
# Wrap the whole model in a single `fully_shard(model)` and it trains, to the same losses, with the same bytes at rest. Its first forward gathers *everything*; nothing is given back until the backward pass is over; then the whole model's gradient waits beside it for one reduce-scatter.

# %% tags=["nbval-ignore-output"]
def reduced_once(shape, job, seed):
    """Gradients are shared out after the last micro-batch only; until then each rank keeps them whole."""
    training = sharded(shape, job, seed)
    turns, loss = cycle(range(1, job.accumulate + 1)), training.loss

    def of_one(*batch):
        training.model.set_requires_gradient_sync(next(turns) == job.accumulate)
        return loss(*batch)

    training.loss = of_one
    return training


twice = fsdp.but(accumulate=2)
more = {"FSDP in one unit": (in_one_unit, fsdp), "FSDP, 2 micro-batches": (sharded, twice),
        "FSDP, 2 micro-batches, reduced once": (reduced_once, twice)}
seen |= on_ranks(more)
table = [["measured on cpu, allocator events", "peak, MiB", "at"]]
for name in ("FSDP", *more):
    table.append([name, f"{seen[name].peak / MiB:.1f}", seen[name].peak_at])
print(columns_text(table))
assert seen["FSDP in one unit"].peak > 1.2 * seen["FSDP"].peak
assert seen["FSDP, 2 micro-batches, reduced once"].peak > seen["FSDP, 2 micro-batches"].peak

# %% [markdown]
# ### Accumulation, and what `no_sync` costs here
# Under DDP, accumulating without reduction costs nothing: the whole gradient is there anyway. Under FSDP it is the last row above: a rank that does not share out its gradients has to keep all of them. What is saved is traffic:

# %% tags=["nbval-check-output"]
both = ranks.run(counted, count, {name: more[name] for name in list(more)[1:]})[0]
for name, kinds in both.items():
    print(f"{name}: " + ", ".join(f"{kind} {size / parameters:.2f}" for kind, (_, size) in kinds.items())
          + " bytes a parameter sent")
size = 26e9 * 2  # bf16 gradients of 26 billion parameters
print(f"26 billion parameters on 16 ranks: {size / 16 / 1e9:.2f} GB of gradients a rank when reduced each time, "
      f"{size / 1e9:.1f} GB when not, computed")

# %% [markdown]
# Somebody met the last line: a run whose memory rose from two fifths of the card to most of it when reduction was switched off (meta-pytorch/tnt#1057). With a small model the same switch is a bargain. It is not a default, it is a trade: one whole gradient against the reduce-scatters of all micro-batches but one.
#
# ### Two precisions and no autocast
# `fully_shard` keeps fp32 shards and gathers them in another precision, if its policy says so. Autocast casts every weight on every use and keeps the fp32 one; here the 16-bit copy is what travels, so gathering costs half of the bytes, and the cast is gone when the unit is given back.

# %% tags=["nbval-check-output"]
def precisions() -> dict[str, str]:
    layer = nn.Linear(8, 8)
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    seen = {"weights at rest": layer.weight.dtype}
    layer.register_forward_hook(lambda module, inputs, output: seen.update({"weights in forward": module.weight.dtype}))
    with ranks.counting() as traffic:
        layer(torch.randn(3, 8)).sum().backward()
    seen["gradient as the optimizer finds it"] = layer.weight.grad.dtype
    return {name: str(kind) for name, kind in seen.items()} | {
        f"{kind}, bytes an element": f"{traffic.size(kind) / (8 * 8 + 8):.0f}"
        for kind in ("all-gather", "reduce-scatter")}


for name, value in ranks.run(precisions, 2)[0].items():
    print(f"{name:38s} {value}")

# %% [markdown]
# ### Born in pieces
# A model that has to be whole once, on every rank, before it can be divided, does not fit for the same reason that it did not fit before. So it is made on the *meta* device, where tensors have shapes and no storage; divided there; and only then given memory, for its own part, and values.

# %% tags=["nbval-check-output"]
def built(device: str) -> nn.Module:
    model = laid_out(small, fsdp, device)
    if device == "meta":
        model.to_empty(device="cpu")  # only this rank's part gets memory
        model.tie()
        torch.manual_seed(seed + dist.get_rank())  # the parts are to differ
        for parameter in model.parameters():
            nn.init.normal_(parameter.to_local(), std=0.02)
    return model


def building(device: str) -> tuple[int, int]:
    """(most bytes allocated while the sharded model is built, bytes of it at rest)."""
    kept = []
    most = on_rank.most_allocated(lambda: kept.append(built(device)))
    return most, sum(p.to_local().nbytes for p in kept[0].parameters())


for device in ("cpu", "meta"):
    peak, rest = ranks.run(building, count, device, env={"KINETO_LOG_LEVEL": "99"})[0]
    whole = "the whole model" if peak >= 4 * parameters else "never the whole model"
    print(f"made on {device:4s}: {whole} at once; {rest / MiB:.2f} of {4 * parameters / MiB:.2f} MiB at rest")

# %% [markdown]
# ### Three more settings
# `reshard_after_forward` takes a number besides yes and no: 8 gives the weights back to the eight ranks of a node instead of to all, so that the second gather stays inside the node. *Prefetch*: the next unit is gathered while this one computes, which is why two blocks' weights are alive at once; it can be told to look further ahead, for more memory and more overlap. And `CPUOffloadPolicy` moves the shards, with the optimizer, to host memory: every step then carries gradients down and weights up over PCIe, a rank's part of each. It saves what sharding has already made small; with many ranks there is little left to save.
#
# ## At full size
# The stages of the model from the beginning, at rest, on eight cards; and what somebody measured with such a model under DeepSpeed. (The log says GB and means GiB.)

# %%
bars = {name: predict.memory(model_13b, mixed.but(layout=Layout(dp=8, shard=stage))).states()
        for name, stage in stages.items()}
Stacks(bars, "Each stage divides one thing more; only the last leaves nothing whole",
       "computed, at rest on 1 of 8 ranks", ("80 GB", 80e9))

# %% tags=["nbval-check-output"]
reported = {row["what"] + ", " + row["quantity"]: float(row["gib"]) for row in published("allocators")
            if row["case"] == "A10"}
for number in (2, 3):
    states = sum(bars[next(name for name in bars if name.startswith(f"ZeRO-{number}"))].values())
    what = f"ZeRO-{number} after a step"
    print(f"stage {number} at rest: {states / GiB:.2f} GiB computed, {reported[what + ', allocated']:.2f} published; "
          f"peak {reported[what + ', peak allocated']:.2f}, reserved {reported[what + ', reserved']:.2f} published")

# %% [markdown]
# At rest stage 3 holds little more than half of stage 2, as computed. Its *peak* was higher: gathered weights and prefetch buffers, which are settings, came on top. Who compares `nvidia-smi` under the two concludes that stage 3 costs memory. Compare at rest to see whether sharding works, and at the peak to see whether the buffers fit.
#
# Then the number of ranks. Llama 3.1 8B, two sequences of 8,192 tokens a rank, fp32 shards with bf16 compute, every block recomputed:

# %% tags=["nbval-check-output"]
model_8b = shape("llama-3.1-8b")
long = Job(micro_batch=2, seq=8192, precision="bf16-autocast", recompute="full")
at = {n: predict.memory(model_8b, long.but(layout=Layout(dp=n, shard="zero3"))) for n in (8, 16, 64, 128, 1024)}
table = [["ranks, computed", "states, GiB", "peak, GiB", "at"]]
for n, ledger in at.items():
    table.append([f"{n}", f"{sum(ledger.states().values()) / GiB:.2f}", f"{ledger.peak / GiB:.2f}", ledger.peak_at])
print(columns_text(table))

# %%
dry = dryrun.memory(model_8b, long.but(layout=Layout(dp=1024, shard="zero3")))
assert abs(dry.peak / at[1024].peak - 1) < 1e-3
print(f"1,024 ranks, dry run ({dry.source}): {dry.peak / GiB:.2f} GiB at {dry.peak_at}")
draw(dry, "On 1,024 ranks the states are gone, and the tokens' part has not moved")

# %% [markdown]
# From 8 ranks to 128 the states nearly vanish; from 128 to 1,024 there is nothing left to win. A published table has both, and since everything but the states cancels in the difference, it tests the arithmetic alone. It is of reserved memory, which keeps what any instant has needed, that of all gradients too:

# %% tags=["nbval-check-output"]
rows = [row for row in published("memory") if row["case"] == "A02"]
states_drop = (sum(at[8].states().values()) - sum(at[128].states().values())) / GiB
print(f"from 8 to 128 ranks, computed: all states {states_drop:.1f} GiB, "
      f"those alive at the {at[8].peak_at} {(at[8].peak - at[128].peak) / GiB:.1f} GiB")
print(f"if everything were divided: {at[8].peak * (1 - 8 / 128) / GiB:.1f} GiB, computed")
for technique in dict.fromkeys(row["technique"] for row in rows):
    few, many = (float(row["gib"]) for row in rows if row["technique"] == technique)
    print(f"{technique}: {few - many:.1f} GiB published (reserved, {rows[0]['gpu']}; torchtitan)")

# %% [markdown]
# ## Exercises
# ### 11.1 Bytes at each stage
# A model trains in bf16 with an fp32 master copy and fp32 moments, on 16 ranks. How many bytes a parameter does a rank hold at rest, with gradients, at each stage of the paper?

# %% tags=["stub"] exercise="11.1"
answer_1 = {"stage 0": ..., "stage 1": ..., "stage 2": ..., "stage 3": ...}

# %% tags=["solution"] exercise="11.1"
answer_1 = {"stage 0": 2 + 2 + 12, "stage 1": 2 + 2 + 12 / 16, "stage 2": 2 + 14 / 16, "stage 3": 16 / 16}

# %% tags=["check"] exercise="11.1"
check("11.1", answer_1)

# %% [markdown]
# ### 11.2 A sharded optimizer
# Write stage 1 as the paper has it, for SGD with momentum: $m \leftarrow \mu m + g$, $w \leftarrow w - \eta m$, with $g$ the *mean* of the ranks' gradients. `weights` is one vector, equal on all ranks, whose length the number of ranks divides; change it in place. The check runs three steps on two and on three ranks, compares with one process, and counts: beside the weights a rank may keep $1/n$ of their bytes, and it may send no more than an all-reduce would. `dist.reduce_scatter_single(part, whole)` and `dist.all_gather_single(whole, part)` are the two calls.

# %% tags=["stub"] exercise="11.2"
class ShardedMomentum:
    """SGD with momentum over weights [L]; each rank keeps the momentum of its own part [L / n]."""

    def __init__(self, weights: torch.Tensor, lr: float, momentum: float):
        ...

    def step(self, gradient: torch.Tensor) -> None:
        """gradient [L]: this rank's own."""
        ...


# %% tags=["solution"] exercise="11.2"
class ShardedMomentum:
    """SGD with momentum over weights [L]; each rank keeps the momentum of its own part [L / n]."""

    def __init__(self, weights: torch.Tensor, lr: float, momentum: float):
        self.weights, self.lr, self.momentum = weights, lr, momentum
        self.part = weights.chunk(dist.get_world_size())[dist.get_rank()]  # a view: no bytes of its own
        self.m = torch.zeros_like(self.part)

    def step(self, gradient: torch.Tensor) -> None:
        """gradient [L]: this rank's own."""
        g = torch.empty_like(self.part)
        dist.reduce_scatter_single(g, gradient)
        self.m.mul_(self.momentum).add_(g / dist.get_world_size())
        self.part.sub_(self.lr * self.m)
        dist.all_gather_single(self.weights, self.part.clone())


# %% tags=["check"] exercise="11.2"
check("11.2", ShardedMomentum)

# %% [markdown]
# ### 11.3 The peak of a wrapping
# Llama 3.1 8B has 32 blocks of 218,112,000 parameters; embedding, final norm and head have 1,050,677,248 together and are the outer unit. FSDP gathers in bf16. In the middle of the backward pass, how many GB (10⁹ bytes) of gathered weights does a rank hold, when the next block has already been gathered, if each block is a unit? And if `fully_shard` is called on the model only?

# %% tags=["stub"] exercise="11.3"
answer_3 = {"by block, GB": ..., "one unit, GB": ...}

# %% tags=["solution"] exercise="11.3"
answer_3 = {"by block, GB": 2 * (1_050_677_248 + 2 * 218_112_000) / 1e9,
            "one unit, GB": 2 * (1_050_677_248 + 32 * 218_112_000) / 1e9}

# %% tags=["check"] exercise="11.3"
check("11.3", answer_3)

# %% [markdown]
# ### 11.4 DDP or FSDP?
# Eight GPUs of 80 GB, fp32 state with AdamW (16 bytes a parameter), bf16 compute, unless something else is said. Answer `DDP`, `FSDP` or `neither` (sharding the states does not solve it).
#
# - **A** 124 million parameters; the step is to be as fast as possible.
# - **B** 8 billion parameters, one node with NVLink, short sequences.
# - **C** 1.5 billion parameters over 10 Gbit/s Ethernet, 16 micro-batches accumulated in each step.
# - **D** 70 billion parameters.
# - **E** 3 billion parameters, and one sequence whose activations alone take 120 GB a rank.
# - **F** 3 billion parameters on eight cards of 40 GB, short sequences.

# %% tags=["stub"] exercise="11.4"
answer_4 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}

# %% tags=["solution"] exercise="11.4"
answer_4 = {"A": "DDP", "B": "FSDP", "C": "DDP", "D": "neither", "E": "neither", "F": "FSDP"}

# %% tags=["check"] exercise="11.4"
check("11.4", answer_4)

# %% [markdown]
# ### 11.5 The loss is flat
# Nothing fails, and nothing is learnt. Mend this function: it shall return the model, sharded by layer and as a whole, and an SGD optimizer with learning rate `lr` that trains it. "When it breaks", below, shows the symptom.
#
# ```python
# def prepare(model: nn.Sequential, lr: float):
#     optimizer = torch.optim.SGD(model.parameters(), lr=lr)
#     for layer in model:
#         fully_shard(layer)
#     fully_shard(model)
#     return model, optimizer
# ```

# %% tags=["stub"] exercise="11.5"
def prepare(model: nn.Sequential, lr: float):
    """(the model, each of its layers a unit; an optimizer that trains it)."""
    ...


# %% tags=["solution"] exercise="11.5"
def prepare(model: nn.Sequential, lr: float):
    """(the model, each of its layers a unit; an optimizer that trains it)."""
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=lr)  # now the parameters are the ones that train


# %% tags=["check"] exercise="11.5"
check("11.5", prepare)

# %% [markdown]
# ### 11.6 One writer
# On a shared file system every rank runs `torch.save(state, path)` after each epoch. Mend it. After the call every rank on every node may load `path` at once; a run that dies while writing must leave the old checkpoint as it was. `state` is the same on all ranks. The check plays two nodes with one rank each, so that `LOCAL_RANK` is 0 on both.

# %% tags=["stub"] exercise="11.6"
def save(state: dict, path: str) -> None:
    """Write state to path once; on return every rank can load it."""
    ...


# %% tags=["solution"] exercise="11.6"
def save(state: dict, path: str) -> None:
    """Write state to path once; on return every rank can load it."""
    if dist.get_rank() == 0:  # of all ranks on all nodes
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)  # all of it or nothing
    dist.barrier()


# %% tags=["check"] exercise="11.6"
check("11.6", save)

# %% [markdown]
# ### 11.7 To reduce or not to reduce
# 26 billion parameters on 16 ranks of FSDP, gradients in bf16, 8 micro-batches a step. Give the bytes of gradients that a rank keeps, in GB, with a reduction after every micro-batch and with one at the end; and how many GB of gradients a rank sends in a step in each case.

# %% tags=["stub"] exercise="11.7"
answer_7 = {"kept, every time": ..., "kept, once": ..., "sent, every time": ..., "sent, once": ...}

# %% tags=["solution"] exercise="11.7"
whole = 2 * 26  # GB
answer_7 = {"kept, every time": whole / 16, "kept, once": whole,
            "sent, every time": 8 * whole * 15 / 16, "sent, once": whole * 15 / 16}

# %% tags=["check"] exercise="11.7"
check("11.7", answer_7)

# %% [markdown]
# ## When it breaks
# The loss is flat from the first step. No warning; gradients exist, and are not zero. The learning rate is raised tenfold, and nothing moves: not even into divergence.
#
# That is the sign to read. A bad learning rate changes *something*. Here the weights do not change by one bit, and one line shows whether the optimizer holds the tensors that the model computes with.

# %% tags=["nbval-check-output"]
def train(optimizer_first: bool, lr: float) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    early = torch.optim.SGD(model.parameters(), lr=lr)
    fully_shard(model)  # puts new parameters, this rank's parts, in place of the old ones
    optimizer = early if optimizer_first else torch.optim.SGD(model.parameters(), lr=lr)
    before = [p.to_local().clone() for p in model.parameters()]
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    moved = sum(int((p.to_local() != old).sum()) for p, old in zip(model.parameters(), before, strict=True))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    same = all(id(p) in held for p in model.parameters())
    return f"{'some' if moved else 'no'} weights moved; the optimizer holds the model's parameters: {same}"


for first, lr in ((True, 0.1), (True, 1000.0), (False, 0.1)):
    print(f"optimizer built {'before' if first else 'after'} sharding, lr {lr:g}: {ranks.run(train, 2, first, lr)[0]}")

# %% [markdown]
# `fully_shard` replaces every parameter. An optimizer built before it holds the old ones, whole and without gradients, and skips each of them silently; it also keeps their memory. The rule: **shard, then build the optimizer**; and assert once, at the start of a run, what the last column says.
#
# The second failure shows only when it is too late. The run is restarted, and the checkpoint cannot be read: *failed finding central directory*. Sometimes it can: the same code, another day. Every rank wrote it. Here rank 1 is a moment late, and rank 0 reads what it has just written:

# %% tags=["nbval-check-output"]
def everyone_writes(path: str) -> str:
    saved, said = io.BytesIO(), ""
    torch.save({"weights": torch.ones(1000)}, saved)
    if dist.get_rank() == 1:
        dist.barrier()  # rank 0 has finished writing
    with open(path, "wb") as file:  # opening it empties it
        file.write(saved.getvalue() if dist.get_rank() == 0 else saved.getvalue()[:2000])  # rank 1 is half way
    dist.barrier()
    if dist.get_rank() == 0:
        dist.barrier()
        try:
            torch.load(path)
        except RuntimeError as error:
            said = str(error).split(": ")[-1].split(". ")[0]
    return said


with tempfile.TemporaryDirectory() as folder:
    print("rank 0 loads what it wrote:", ranks.run(everyone_writes, 2, f"{folder}/model.pt")[0])

# %% [markdown]
# Two guards that do not cure it: `if local_rank == 0`, which is true once on *every* node; and a lock on the file, after which the second writer still replaces what the first one's readers have open. Global rank 0 writes, to another name; then renames; then all ranks meet. With sharded weights there is a better way still: every rank writes its own part to its own file (`torch.distributed.checkpoint`).

# %% [markdown]
# ## Explain it
# Without notes: **what does each stage of ZeRO divide, and why does only the third cost more traffic?** Then:
#
# 1. Which of a rank's bytes does no number of ranks divide?
# 2. Two runs have the same bytes at rest, and one of them fails. What is different about its units?
# 3. When is it right to accumulate without reduction, and what does a rank hold then?
# 4. A loss does not move, whatever the learning rate. What do you compare?

# %% [markdown]
# ## Take away
# > **States are divided, tokens are not.** 16 bytes a parameter become 16/N; activations and gathered weights stay.
#
# > **With one micro-batch, stages 1 and 2 send what an all-reduce sends, and stage 3 half as much again.** With several, stages 2 and 3 send in each. Those are the paper's; count what your implementation sends.
#
# > **Shard, then build the optimizer; one writer, then a rename.** Both mistakes are silent.
#
# Reading: Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models* (arXiv 1910.02054), sections 5 and 7; Zhao et al., *PyTorch FSDP* (arXiv 2304.11277).
