# %% [markdown]
# # 01 · Memory anatomy
#
# Where the bytes of a training step are, at which instant they are most, and how to know before it runs.
#
# **Minutes** 75 · **Hardware** cpu, gpu · **Needs** 00
#
# After this lesson you can
#
# - compute the bytes a parameter of a training set-up, and say when each of them comes to exist;
# - predict the peak of a step, and name the instant at which it happens;
# - tell allocated, reserved and device-used memory apart, and read an out-of-memory message by them;
# - find what keeps a tensor alive: a graph, an evaluation, a traceback;
# - decide which card holds a model.

# %%
import time
import weakref

import torch

from gpucourse import check, compare, draw, dryrun, guess, hint, measure, models, predict, question, solution, watch
from gpucourse.catalog import GiB, Job, MiB, gpt, gpu, pick, published, shape
from gpucourse.evidence import columns_text, column

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of the weights and of the text

# %% [markdown]
# ## The question
# GPT-2 XL loads onto a T4 and leaves more than half of the card free. The first training step, with a batch of one sequence, ends in *out of memory*. You shorten the sequence: the same. You recompute the activations: the same. The part of the card that was free a moment ago is full, and no batch is small enough.

# %% tags=["nbval-check-output"]
xl, t4 = shape("gpt2-xl"), gpu("t4")
loaded = 4 * predict.parameters(xl).total
print(f"{xl.name}: {loaded / GiB:.2f} GiB of fp32 weights on a card of {t4.capacity_gib:.2f} GiB")

# %% [markdown]
# Loading asks for the weights. Training asks for several more things of the same size, and each has its own time: some exist all along, some only while the loss goes backward, some only inside `optimizer.step()`. What matters for *does it fit* is the instant at which most of them are alive together.

# %% [markdown]
# ## Predict
# Here is a model small enough to train on this machine, and a job for it. Before you run anything else, write down the most memory that will be allocated at once while it takes a training step, in GiB, and how much of that you expect to be activations: what the forward pass leaves for the backward pass.

# %%
here = measure.device()
small = pick(profile,
             smoke=gpt("small", layers=4, hidden=192, heads=4, vocab=256, context=256),
             lab=gpt("small", layers=6, hidden=384, heads=6, vocab=256, context=256),
             full=gpt("small", layers=24, hidden=1024, heads=16, vocab=256, context=1024))
job = Job(micro_batch=pick(profile, smoke=4, lab=8, full=8), seq=small.context)
if profile == "full":  # the largest batch that is sure to fit
    while predict.memory(small, job.but(micro_batch=2 * job.micro_batch)).device[1] < here.capacity:
        job = job.but(micro_batch=2 * job.micro_batch)
print(f"{predict.parameters(small).total:,} parameters: {small.layers} layers, hidden {small.hidden}")
print(f"{job}: {job.tokens:,} tokens a step")

# %%
mine = guess("01.g1", {"peak allocated": ..., "activations and temporaries": ...}, "GiB")

# %% [markdown]
# ## Mechanism
# ### What stays
# Take one layer with a million parameters, and ask after each line of a training step what exists.

# %% tags=["nbval-check-output"]
layer = torch.nn.Linear(1000, 1000, bias=False)  # 1,000,000 parameters in fp32
optimizer = torch.optim.AdamW(layer.parameters())


def held() -> list[str]:
    """Bytes a parameter of weights, gradients and optimizer state, as they are now."""
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    parts = [layer.weight], [layer.weight.grad], state
    return [f"{sum(t.nbytes for t in part if t is not None) / layer.weight.numel():.0f}" for part in parts]


rows = [["", "weights", "gradients", "optimizer"], ["built", *held()]]
loss = layer(torch.randn(8, 1000)).square().mean()
rows.append(["after forward", *held()])
loss.backward()
rows.append(["after backward", *held()])
optimizer.step()
rows.append(["after step()", *held()])
optimizer.zero_grad()
rows.append(["after zero_grad()", *held()])
print(columns_text(rows))

# %% [markdown]
# A weight that loads as 4 bytes trains as 16: itself, its gradient, and AdamW's two moments. The gradient comes and goes within a step, because `zero_grad()` sets it to `None`. The moments come with the *first* `step()` and stay.
#
# So the second step starts with more memory taken than the first. A run can finish its first step and fail in its second. Give the small model a budget between the two peaks and it does: `measure.budget` counts every tensor and refuses the operation that would pass the limit, as a full card would.

# %%
def peak_of_steps(count: int) -> list[int]:
    """The highest number of live bytes in each of the first steps, counted on fake tensors: nothing is allocated."""
    with dryrun.fake():
        training = models.training(small, job)
        peaks = []
        for _ in range(count):
            with measure.LiveStorages() as live:
                live.own(training.model, training.optimizer)
                training()
            peaks.append(live.peak)
    return peaks


first, second, third = peak_of_steps(3)
print(f"step 1 {first / MiB:.1f} MiB · step 2 {second / MiB:.1f} MiB · step 3 {third / MiB:.1f} MiB")

# %%
with dryrun.fake():
    training = models.training(small, job)
    with measure.budget((first + second) / 2, training.model) as budget:
        training()
        print(f"step 1 passes: {budget.peak / MiB:.1f} MiB of {budget.limit / MiB:.1f}")
        try:
            training()
        except MemoryError as refused:
            print(f"step 2: {refused}")
del training

# %% [markdown]
# ### What passes through
# The other part is what forward leaves for backward. A linear layer $y = xW$ needs $x$ again to compute $W$'s gradient; GELU needs its input; attention its queries, keys, values and result; a norm its input and two numbers a token. PyTorch tells which tensors it saves, and the sum is a formula in the model's widths: $h$ hidden, $k$ the width of keys, $f$ the MLP's, $a$ heads, over $n$ tokens.

# %% tags=["nbval-check-output"]
block = models.transformer.Block(small)
x = torch.randn(2, 100, small.hidden, requires_grad=True)  # [B, T, H]
saved = {}


def note(tensor):
    storage = tensor.untyped_storage()
    saved[storage.data_ptr()] = storage.nbytes()
    return tensor


with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    y = block(x)
weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
counted = sum(size for pointer, size in saved.items() if pointer not in weights)

n, h, k, f, a = 2 * 100, small.hidden, small.kv_hidden, small.ffn, small.heads
formula = n * (24 * h + 8 * k + 8 * f + 16 + 4 * a)
print(f"saved by one block for {n} tokens: {counted:,} bytes counted, {formula:,} by the formula")

# %% [markdown]
# Read the formula by parts. $24h$ is six tensors as wide as the stream, at 4 bytes: the input of each norm, each norm's result, the queries, the attention's result. $8k$ is keys and values. $8f$ is the MLP's wide tensor before and after GELU: with $f = 4h$ more than half of everything. Nothing here depends on the weights' precision or on the optimizer, and all of it is proportional to the tokens: **states scale with parameters, activations with tokens.**
#
# ### When each is alive
# Forward climbs: each block adds what it saves. Backward descends: each block gives back what it saved, and makes gradients. Somewhere between the two is the peak, and it can be in only a few places, because between them memory changes by the same amount a block. This course names six instants:
#
# | instant | begins | what is special there |
# |---|---|---|
# | forward | at the first layer | activations grow |
# | loss | at the final norm | logits, and the loss's own copies of them |
# | last block | when the head's backward is done | all activations, hardly any gradient |
# | first block | one block left to go | all gradients but one block's, hardly any activation |
# | embedding | after the last of the blocks | a gradient as large as the token table |
# | step | in the optimizer | all gradients, all moments, and the optimizer's temporaries |
#
# The ledger below is that list with numbers: one line a thing, one column an instant, the peak at ◀.

# %% tags=["nbval-check-output"]
ledger = predict.memory(small, job)
ledger

# %%
draw(ledger.memory(), f"{job.tokens:,} tokens against {predict.parameters(small).total / 1e6:.1f} M parameters: "
     f"the peak comes at the {ledger.peak_at}")

# %% [markdown]
# ### What the optimizer makes inside step()
# With one token the activations vanish, and another instant leads. PyTorch's default AdamW works on *lists* of tensors (`foreach`), which is fast, and needs one temporary list as large as all weights together. Working tensor by tensor needs two temporaries of the largest tensor. `fused` needs none. The same model, the same batch, three peaks:

# %% tags=["nbval-check-output"]
one_token = Job(micro_batch=1, seq=1)
ways = {"foreach": one_token, "one tensor at a time": one_token.but(foreach=False),
        "fused": one_token.but(foreach=False, fused=True)}
count = predict.parameters(small).total
table = [["", "bytes a parameter", "at"]]
for name, way in ways.items():
    at_one = predict.memory(small, way)
    table.append([name, f"{at_one.peak / count:.2f}", at_one.peak_at])
print(columns_text(table))

# %% [markdown]
# That is the answer to the question above: with AdamW's default, `step()` needs five numbers a parameter before a single token is counted. Five times the weights of GPT-2 XL is more than the card has, and no batch is small enough to change it.
#
# ### Allocated, reserved, used on the device
# Three figures are called "GPU memory", and they differ by design.
#
# - **Allocated**: bytes in live tensors. The ledger predicts this one.
# - **Reserved**: what PyTorch's caching allocator took from the driver. It keeps freed blocks for the next tensor, rounds sizes up, and cannot always use what it keeps.
# - **Used on the device**: what `nvidia-smi` shows. Reserved, the CUDA context and its libraries, and every other process.
#
# Why reserved memory can be free and useless at once is shown by a toy: a shelf of pieces, of which every other one is returned.

# %% tags=["nbval-check-output"]
shelf = [1.0] * 8  # eight pieces of 1 GiB, all taken
free = [piece if place % 2 == 0 else 0.0 for place, piece in enumerate(shelf)]  # every other one is given back
asked = 2.0
print(f"free {sum(free)} GiB, largest piece {max(free)} GiB, asked {asked} GiB:",
      "served" if max(free) >= asked else "out of memory, with twice as much free as asked")

# %% [markdown]
# A piece that is free lies between two that are not: that is *fragmentation*. PyTorch's expandable segments (`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`) make the pieces of one segment join. On a GPU the next cell reads the three figures and the largest free piece off this process; elsewhere it shows figures that others published, with their source.

# %%
if here.kind == "cuda":
    seen_by_allocator = measure.allocator()
    display(compare(seen_by_allocator))
else:
    print("needs 1 GPU (this machine has 0); published figures instead:\n")
    rows = published("allocators")
    print(columns_text([["", "", "GiB"], *([row["what"], row["quantity"], row["gib"]] for row in rows)], left=2))
    print("\n" + "\n".join(f"{case}: {source}" for case, source in dict.fromkeys((r["case"], r["source"]) for r in rows)))

# %% [markdown]
# Two things to see in them. A context takes more than a GiB before any tensor exists. And at ZeRO-3 the resident tensors are not much more than half of what they are at ZeRO-2, while the *peak* is higher and more is reserved: whoever compares `nvidia-smi` before and after concludes the opposite of what happened.

# %% [markdown]
# ## Measure
# Now the training runs, on text that ships with Python, and the chart follows it. On a CPU the upper line is the process's own resident memory; on a GPU it is what the allocator gave out.

# %% tags=["nbval-ignore-output"]
steps = pick(profile, smoke=10, lab=40, full=60)
torch.manual_seed(seed)
training = models.training(small, job, here.torch, seed)
batches = models.text.batches(job.micro_batch, job.seq, seed)
losses = []
with watch(f"{small.name}, {job.precision}, {job.optimizer}") as w:
    for _ in range(steps):
        tokens, targets = (t.to(here.torch) for t in next(batches))  # [B, T] each
        losses.append(training.step(tokens, targets).item())
        w.step(job.micro_batch)

# %%
print(f"loss {losses[0]:.2f} at step 1, {losses[-1]:.2f} at step {steps}: it learns" if losses[-1] < losses[0] else losses)
del training

# %% [markdown]
# Resident memory says that something happened, not what. For the comparison one step is taken apart: in a fresh process, by the allocator's own events, with a mark at each instant. The dry run goes the other way: the same code on *fake* tensors, which have shapes and no storage, counted operation by operation. Arithmetic, dispatch and allocator are three ways to count that can disagree.

# %% tags=["nbval-ignore-output"]
dry = dryrun.memory(small, job)
seen = measure.memory(models.training, small, job, here.torch)

# %% [markdown]
# ## Compare

# %% tags=["nbval-ignore-output"]
compare(mine, ledger, dry, seen)

# %% [markdown]
# Computed, dry run and measured were counted by three different means, so a difference between them would mean something. The closed form leaves out a few scalars: the loss, its gradient. The high-water mark of the process has no prediction; it stands above the allocator's peak by what the process needs besides tensors.
#
# One set-up proves little. Here are four, each with its own fresh process. The rows are peaks; `off` is measured against computed.

# %% tags=["nbval-ignore-output"]
setups = {
    "fp32, AdamW": job,
    "bf16 autocast": job.but(precision="bf16-autocast"),
    "recompute": job.but(recompute="full"),
    "SGD": job.but(optimizer="sgd"),
}
ledgers = {name: predict.memory(small, j) for name, j in setups.items()}
dries = {name: dryrun.memory(small, j) for name, j in setups.items()}
measured = {name: seen if j == job else measure.memory(models.training, small, j, here.torch)
            for name, j in setups.items()}
compare(column("computed", {name: x.peak / GiB for name, x in ledgers.items()}, "GiB"),
        column("dry run", {name: x.peak / GiB for name, x in dries.items()}, "GiB", "cpu, fake tensors"),
        column("measured", {name: x.peak / GiB for name, x in measured.items()}, "GiB", here.label))

# %% tags=["nbval-check-output"]
for name in setups:
    computed, counted = ledgers[name].states(), dries[name].at["step"]
    assert all(size == counted.get(part, 0) for part, size in computed.items())
    print(f"{name:14s} peak at {ledgers[name].peak_at:11s} "
          + " · ".join(f"{part} {size:,}" for part, size in computed.items()) + " bytes, the same in the dry run")

# %% [markdown]
# Weights, gradients and optimizer state agree to the byte. Where a difference is left under autocast, it is a buffer that the CPU's attention kernel takes inside one operation: dispatch does not see into a kernel, the allocator does.
#
# Look at *where* the peak is, row by row. A cure lowers the instants at which its bytes are alive and leaves the others where they were; then the next highest is the peak. That is why two cures together rarely save the sum of what each saves alone.

# %% [markdown]
# ## At full size
# GPT-2 XL, one sequence of full length. The dry run takes two shallow copies of the model and extends each *instant* to the real depth, which is exact because every block adds the same; extending the peak alone would not be, since the largest instant can be another one at depth.

# %% tags=["nbval-ignore-output"]
full = Job(micro_batch=1, seq=1024)
begin = time.perf_counter()
dry_full = dryrun.memory(xl, full)
seconds = time.perf_counter() - begin
print(f"dry run of {predict.parameters(xl).total / 1e9:.2f} billion parameters in {seconds:.1f} s: {dry_full.source}")
compare(predict.memory(xl, full), dry_full)

# %%
draw(dry_full, f"{xl.name}, one sequence in fp32: the peak comes at the {dry_full.peak_at}")

# %% [markdown]
# Which card holds it? The verdict compares what the device will show as used, an interval, with the capacity that torch reports for the card, which is less than the number on its box. `uncertain` means that the capacity lies inside the interval: try it, or leave room.

# %% tags=["nbval-check-output"]
cards = ["t4", "l4", "a100-40", "l40s", "a100-80"]
ways = {
    "fp32": full,
    "fp32, fused": full.but(foreach=False, fused=True),
    "fp32, SGD": full.but(optimizer="sgd"),
    "bf16 autocast": full.but(precision="bf16-autocast"),
    "bf16 autocast, fused": full.but(precision="bf16-autocast", foreach=False, fused=True),
    "pure bf16": full.but(precision="bf16"),
    "pure bf16, fused": full.but(precision="bf16", foreach=False, fused=True),
}
table = [["GPT-2 XL, 1 × 1024", "GiB allocated", "peak at", *(f"{c}" for c in cards)]]
for name, way in ways.items():
    at_full = predict.memory(xl, way)
    table.append([name, f"{at_full.peak / GiB:.1f}", at_full.peak_at, *(at_full.fits(card) for card in cards)])
table.append(["capacity, GiB", "", "", *(f"{gpu(card).capacity_gib:.1f}" for card in cards)])
print(columns_text(table))

# %% [markdown]
# Compare the rows that differ by one thing. Autocast alone saves nothing here: weights, gradients and moments stay in fp32, and the peak is in `step()`, where autocast has no part. The keyword `fused=True` lowers the peak more than the precision of the compute does, and costs nothing.

# %% [markdown]
# ## Exercises
# ### 01.1 Bytes a parameter
# For each set-up: how many bytes do weights, gradients and optimizer state take together, for one parameter, after the first step and before `zero_grad()`? Temporaries do not count. `bf16-master` keeps bf16 weights and gradients, and in the optimizer fp32 moments beside an fp32 copy of the weights.

# %% tags=["stub"] exercise="01.1"
answer_1 = {
    "fp32, AdamW": ...,
    "fp32, SGD with momentum": ...,
    "bf16 autocast, AdamW": ...,
    "pure bf16, AdamW": ...,
    "bf16-master, AdamW": ...,
}

# %% tags=["solution"] exercise="01.1"
answer_1 = {
    "fp32, AdamW": 4 + 4 + 4 + 4,  # weight, gradient, two moments
    "fp32, SGD with momentum": 4 + 4 + 4,  # one moment
    "bf16 autocast, AdamW": 4 + 4 + 4 + 4,  # autocast changes the compute, not what is stored
    "pure bf16, AdamW": 2 + 2 + 2 + 2,
    "bf16-master, AdamW": 2 + 2 + 4 + 4 + 4,  # the moments and the master copy are fp32
}

# %% tags=["check"] exercise="01.1"
check("01.1", answer_1)

# %% [markdown]
# ### 01.2 Where is the peak?
# Name the instant of the peak for five trainings of GPT-2 (`shape("gpt2")`), AdamW with `foreach` where nothing else is said. Decide before you compute: is it states, logits or activations that dominate, and when are those alive? The instants are `forward`, `loss`, `last block`, `first block`, `embedding`, `step`.

# %% tags=["stub"] exercise="01.2"
answer_2 = {
    "fp32, 1 × 16 tokens": ...,
    "fp32, 8 × 1024 tokens": ...,
    "fp32, 8 × 1024 tokens, vocabulary 256": ...,
    "fp32, 8 × 1024 tokens, vocabulary 256, recompute": ...,
    "fp32, 1 × 16 tokens, fused": ...,
}

# %% tags=["solution"] exercise="01.2"
answer_2 = {
    "fp32, 1 × 16 tokens": "step",  # nothing but states, and the list that foreach makes
    "fp32, 8 × 1024 tokens": "loss",  # three tensors as wide as the vocabulary
    "fp32, 8 × 1024 tokens, vocabulary 256": "last block",  # small logits: the MLP's gradients come on top instead
    "fp32, 8 × 1024 tokens, vocabulary 256, recompute": "first block",  # one block made again, and most gradients
    "fp32, 1 × 16 tokens, fused": "embedding",  # step() makes nothing; the table's gradient is made and added
}

# %% tags=["check"] exercise="01.2"
check("01.2", answer_2)

# %% [markdown]
# ### 01.3 The ledger of a given model
# Write the two instants that matter most for a GPT-2 style model in fp32 with AdamW (`foreach`), tied embeddings, no recomputation: return a dict with the bytes allocated at `"loss"` and at `"step"`. You are given the parameter count `N`, the tokens `n` of a micro-batch, and the widths. The head saves its norm's input, its norm's result and a norm's two statistics, and the log-probabilities; its backward makes two more tensors of the logits' size. The batch itself is 16 bytes a token. Within one per cent is right.

# %% tags=["stub"] exercise="01.3"
def step_ledger(N: int, n: int, layers: int, h: int, f: int, a: int, V: int) -> dict[str, float]:
    """Bytes allocated at the loss and in step()."""
    ...


# %% tags=["solution"] exercise="01.3"
def step_ledger(N: int, n: int, layers: int, h: int, f: int, a: int, V: int) -> dict[str, float]:
    """Bytes allocated at the loss and in step()."""
    blocks = layers * n * (24 * h + 8 * h + 8 * f + 16 + 4 * a)  # here k = h
    head = n * (8 * h + 8 + 4 * V) + 2 * 4 * n * V  # saved, and made in backward
    return {
        "loss": (4 + 8) * N + 16 * n + blocks + head,  # weights and moments: no gradient exists yet
        "step": (4 + 4 + 8 + 4) * N + 16 * n,  # and the list that foreach makes
    }


# %% tags=["check"] exercise="01.3"
check("01.3", step_ledger)

# %% [markdown]
# ### 01.4 A leak
# This loop runs out of memory after some hundreds of steps, on any card. Nothing in it looks large. Mend it: the same updates, the same mean loss, returned as a Python float, and no more memory after a hundred steps than after ten.
#
# ```python
# def train(model, optimizer, batches):
#     total, count = 0, 0
#     for x, y in batches:
#         loss = torch.nn.functional.mse_loss(model(x), y)
#         loss.backward()
#         optimizer.step()
#         optimizer.zero_grad()
#         total = total + loss
#         count += 1
#     return total / count
# ```

# %% tags=["stub"] exercise="01.4"
def train(model, optimizer, batches) -> float:
    """Train on every (x, y) of `batches`; return the mean of the losses."""
    ...


# %% tags=["solution"] exercise="01.4"
def train(model, optimizer, batches) -> float:
    """Train on every (x, y) of `batches`; return the mean of the losses."""
    total, count = 0.0, 0
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()  # a number: the tensor, and the graph behind it, may go
        count += 1
    return total / count


# %% tags=["check"] exercise="01.4"
check("01.4", train)

# %% [markdown]
# ### 01.5 An evaluation that costs as much as training
# Write the evaluation that goes between two epochs. It returns the mean loss over all *samples* (the last batch may be shorter), leaves the model in the mode in which it found it, and its peak stays under the limit that the check sets: far below what a forward pass keeps for a backward pass that never comes.

# %% tags=["stub"] exercise="01.5"
def evaluate(model, batches) -> float:
    """The mean squared error over all samples of `batches`, with dropout off."""
    ...


# %% tags=["solution"] exercise="01.5"
def evaluate(model, batches) -> float:
    """The mean squared error over all samples of `batches`, with dropout off."""
    was_training = model.training
    model.eval()
    total, samples = 0.0, 0
    with torch.no_grad():
        for x, y in batches:
            total += torch.nn.functional.mse_loss(model(x), y).item() * len(x)
            samples += len(x)
    model.train(was_training)
    return total / samples


# %% tags=["check"] exercise="01.5"
check("01.5", evaluate)

# %% [markdown]
# ### 01.6 Four messages
# Each line is what an out-of-memory message says, in GiB: the allocation that was tried, the card's capacity, what the driver has free, and what PyTorch has reserved but not allocated. Diagnose each.
#
# | message | tried | capacity | free on the device | reserved, unallocated |
# |---|---|---|---|---|
# | A | 2.00 | 23.6 | 1.10 | 1.90 |
# | B | 24.00 | 23.6 | 12.80 | 9.40 |
# | C | 0.02 | 4.0 | 2.35 | 0.02 |
# | D | 6.00 | 79.2 | 1.50 | 0.40 |
#
# - `impossible`: more than the card has, whatever else is done
# - `too large`: more than is free and reserved together
# - `fragmented`: enough is there, in pieces
# - `elsewhere`: the device has a free piece that is large enough, so something other than PyTorch's pool refused

# %% tags=["stub"] exercise="01.6"
answer_6 = {"A": ..., "B": ..., "C": ..., "D": ...}

# %% tags=["solution"] exercise="01.6"
answer_6 = {"A": "fragmented", "B": "impossible", "C": "elsewhere", "D": "too large"}

# %% tags=["check"] exercise="01.6"
check("01.6", answer_6)

# %% [markdown]
# ### 01.7 The largest batch
# You may train GPT-2 XL on one A100 with 80 GB: bf16 autocast, full recomputation, fused AdamW, sequences of 1,024. Which is the largest micro-batch whose verdict on that card is `yes`? Use the ledger; a table of all batches is three lines of code.

# %% tags=["stub"] exercise="01.7"
answer_7 = ...

# %% tags=["solution"] exercise="01.7"
on_one = Job(seq=1024, precision="bf16-autocast", recompute="full", foreach=False, fused=True)
verdicts = {b: predict.memory(shape("gpt2-xl"), on_one.but(micro_batch=b)).fits("a100-80") for b in range(1, 200)}
answer_7 = max(b for b, verdict in verdicts.items() if verdict == "yes")

# %% tags=["check"] exercise="01.7"
check("01.7", answer_7)

# %% [markdown]
# ### 01.8 More memory with autocast
# At one sequence of 16 tokens, the fp32 training of GPT-2 holds *less* for backward than the same training under bf16 autocast. What takes the memory? And from how many tokens of the one sequence on does autocast hold less at the end of forward? The ledger knows; one in a hundred is near enough.
#
# - `a`: bf16 needs padding to multiples of 8, which small batches pay for
# - `b`: the gradients are kept in both precisions until the optimizer has run
# - `c`: 16-bit copies of the weights are kept for backward, and with few tokens the activations that shrink are smaller than those copies
# - `d`: the optimizer keeps an extra fp32 copy of the weights under autocast

# %%
question("01.8")

# %% tags=["stub"] exercise="01.8"
answer_8 = {"why": ..., "tokens": ...}

# %% tags=["solution"] exercise="01.8"
def held(tokens: int, precision: str) -> int:
    """Bytes for backward at the end of forward."""
    ledger = predict.memory(shape("gpt2"), Job(1, tokens, precision=precision))
    return ledger.memory().at["forward"]["activations"]


answer_8 = {"why": "c", "tokens": next(n for n in range(1, 1025) if held(n, "bf16-autocast") < held(n, "fp32"))}

# %% tags=["check"] exercise="01.8"
check("01.8", answer_8)

# %% [markdown]
# ## When it breaks
# You ran out of memory in a cell. You make the batch smaller, run the cell again, and it is out of memory *again*, at the first allocation. `empty_cache()` changes nothing. Restarting the kernel does.
#
# Here it is without a GPU: a function that holds a large tensor fails, and the exception is kept, as IPython keeps the last one for `%debug`.

# %% tags=["nbval-check-output"]
def fails():
    activations = torch.zeros(16 * MiB, dtype=torch.uint8)
    watched.append(weakref.ref(activations))
    raise MemoryError("out of memory")


watched = []
try:
    fails()
except MemoryError as error:
    last = error  # what IPython does

print("the tensor after the failure:", "alive" if watched[0]() is not None else "freed")

# %% [markdown]
# The exception holds its traceback, the traceback every frame, a frame its local variables, and those the tensors. Nothing of it is in the allocator's cache, so `empty_cache()` has nothing to give back. Cleared frames let go:

# %% tags=["nbval-check-output"]
measure.forget_frames(last)
print("after its frames are cleared:", "alive" if watched[0]() is not None else "freed")

# %% [markdown]
# After a cell that really failed, `measure.release()` does this for the exception that IPython remembers, and returns the cached blocks to the driver. `watch` and `measure.budget` do it by themselves.

# %% [markdown]
# ## Explain it
# Without notes, in your own words, aloud or on paper: **what is alive at each of the six instants of a step, and which of it scales with parameters, which with tokens?** Then:
#
# 1. A run passes its first step and fails in its second. What came to exist between them, and when exactly?
# 2. Halving the batch did not lower the peak at all. At which instant is it?
# 3. `nvidia-smi` shows far more than `torch.cuda.memory_allocated()`. Name the three parts of the difference.
# 4. Autocast was switched on, and at batch 1 the peak rose. Why?
# 5. A colleague estimates training memory as "four times the weights". For which set-up is that right, and what does it leave out?

# %% [markdown]
# ## Take away
# > **Loading is 4 bytes a parameter, training 16, and inside `step()` it can be 20.** Only the batch's part shrinks with the batch.
#
# > **The peak is an instant, not a sum.** States scale with parameters, activations with tokens; find the instant first, then the cure for it.
#
# > **Allocated, reserved and used are three figures.** Predict the first, compare the last with the capacity that torch reports.
#
# Reading: *Reducing Activation Recomputation in Large Transformer Models* (Korthikanti et al., 2022), section 4, for the activation formula of another implementation; PyTorch's notes *CUDA semantics: memory management* and *Understanding CUDA Memory Usage* for the allocator and its snapshot. Next: 02, where the same steps are timed.
