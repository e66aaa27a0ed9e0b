# %% [markdown]
# # 03 · Activations
#
# What forward leaves for backward, who else holds it, and what it costs to hold less.
#
# **Minutes** 90 · **Hardware** cpu, gpu · **Needs** 01
#
# After this lesson you can
#
# - count what a block saves for backward, by hooks and by formula, to the byte;
# - say who holds the logits, and lower the peak that they make by a predicted amount;
# - place recomputation under a byte budget, and hold the plan against a measured peak;
# - rank memory levers by the bytes they save for a millisecond;
# - recompute a block with dropout without changing its gradients.

# %%
import math
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gpucourse import check, compare, dryrun, guess, hint, measure, models, predict, question, solution, watch
from gpucourse.catalog import GiB, Job, MiB, gpt, gpu, llama, pick, published, seconds_text, shape
from gpucourse.evidence import column, columns_text
from gpucourse.live.over_a_step import OverAStep
from gpucourse.live.stacks import Stacks
from gpucourse.live.tradeoff import Tradeoff, Way
from gpucourse.measure.block_cost import block_cost
from gpucourse.measure.saved_tensors import SavedTensors
from gpucourse.measure.trace import Trace
from gpucourse.models import losses, recompute
from gpucourse.predict import activations

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of weights, text and dropout

# %% [markdown]
# ## The question
# Llama 3.1 8B trains on a node of eight cards at 8k tokens, one sequence a card, every block recomputed. Weights and optimizer state are divided among the eight. Somebody wants 32k. Recomputation cannot be more than full, the batch cannot be less than one sequence; you expect four times what the blocks hold, and work it out.

# %% tags=["nbval-check-output"]
large, tokens, h100 = shape("llama-3.1-8b"), 32_768, gpu("h100-sxm")
states = 12 * predict.parameters(large).total / 8  # fp32 weights and two moments; no gradient exists at the loss
inputs = large.layers * activations.saved(large, "bf16", "full").at(activations.dims(large, tokens))
print(f"an eighth of the states {states / GiB:.1f}, the inputs of {large.layers} blocks at {tokens:,} tokens "
      f"{inputs / GiB:.1f}, of {h100.capacity_gib} GiB")

# %% [markdown]
# A quarter of the card. The run is out of memory all the same, at the first `loss.backward()`. The ledger of lesson 01 had a line for the loss too; it was small there. What does a step hold that no recomputation of blocks gives back, who holds it, and what would each remedy cost? Lesson 01 asked *when* memory peaks. This one takes its largest part and asks how to hold less.

# %% [markdown]
# ## Predict
# A model with few parameters and many tokens, so that activations are most of it. What do all its blocks together hold for backward: when nothing is recomputed; when the results of matrix products and of attention are kept and the rest is recomputed; when each block keeps only its input? And how long does a step take with every block recomputed, as a multiple of the plain step?

# %%
here = measure.device()
small = pick(profile,
             smoke=gpt("small", layers=6, hidden=128, heads=4, vocab=4096, context=256),
             lab=gpt("small", layers=6, hidden=192, heads=6, vocab=8192, context=256),
             full=gpt("small", layers=24, hidden=1024, heads=16, vocab=50304, context=1024))
job = Job(micro_batch=pick(profile, smoke=4, lab=4, full=2), seq=pick(profile, smoke=128, lab=256, full=1024),
          foreach=False, fused=True)  # so that step() makes no list of its own
if profile == "full":  # as large as is sure to fit
    larger = (job.but(micro_batch=rows) for rows in (4, 8, 16))
    job = max([job, *(j for j in larger if predict.memory(small, j).device[1] < here.capacity)], key=lambda j: j.tokens)
L, n, h, V = small.layers, job.tokens, small.hidden, small.vocab
print(f"{L} layers, hidden {h}, MLP {small.ffn}, {small.heads} heads, vocabulary {V:,}; {n:,} tokens in fp32")

# %%
mine = guess("03.g1", {"nothing recomputed": ..., "products and attention kept": ..., "all recomputed": ...}, "MiB")

# %%
mine_time = guess("03.g2", {"step, all recomputed": ...}, "× the plain step")

# %% [markdown]
# ## Mechanism
# ### What backward asks for
# A derivative needs some of what its operation saw. The gradient of $y = xW$ with respect to $W$ is $x^\top$ times what arrives: $x$ is saved. GELU is not linear, so its derivative depends on where it was taken: its input is saved. $a + b$ passes on what arrives: nothing is saved. Autograd asks each operation's derivative formula and no one else, and it tells anyone who registers a pair of hooks. Here is what one block saves, a line for each shape:

# %% tags=["nbval-check-output"]
toy = gpt("toy", layers=1, hidden=128, heads=4, vocab=256, context=256)
block, x = models.transformer.Block(toy), torch.randn(2, 100, 128, requires_grad=True)  # x: [B, T, H]
with SavedTensors(block) as held:  # the weights are there anyway
    y = block(x)
rows = [["saved as", "tensors", "bytes each"]]
rows += [[str(list(dims)), str(times), f"{size:,}"] for (dims, size), times in Counter(held.shapes).items()]
print(columns_text(rows))
print(f"together {held.bytes:,} bytes, {held.bytes / 200:,.0f} a token")

# %% [markdown]
# Lesson 01 summed these up: $n\,(24h + 8k + 8f + 4a + 16)$ bytes in fp32, for $n$ tokens. Two things to see in the list. The two widest tensors are the MLP's, before and after GELU: half of everything. And nothing has the shape $T \times T$.
#
# That last point is younger than many estimates. An attention that computes its scores as a tensor must save them, and they grow with the square of the sequence. The fused kernels keep one number for each token and head, and make the scores again from queries and keys, piece by piece: a recomputation inside a kernel. What attention adds to q, k and v, for one token:

# %% tags=["nbval-check-output"]
def attention_saves(seq: int, kernel: SDPBackend) -> float:
    """Bytes a token that attention saves beside q, k and v: 4 heads of 32."""
    q, k, v = (torch.randn(1, 4, seq, 32, requires_grad=True) for _ in range(3))  # [B, A, T, D]
    with sdpa_kernel(kernel), SavedTensors(q, k, v) as kept:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return kept.bytes / seq


rows = [["tokens", "scores kept, bytes a token", "fused kernel, bytes a token"]]
kernels = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
rows += [[f"{seq}", *(f"{attention_saves(seq, kernel):,.0f}" for kernel in kernels)] for seq in (64, 128, 256, 512)]
print(columns_text(rows))

# %% [markdown]
# So a rule such as "activations grow with the square of the context" is a rule about a kernel. With a fused one everything here is proportional to the tokens, at any length.
#
# ### Again instead of kept
# What forward computed once it can compute twice. Keep a block's input, forget the rest, and when its gradient arrives run the block again, this time with autograd watching. The whole idea in one function:

# %%
class Recompute(torch.autograd.Function):
    """function(x), of which backward finds nothing but x."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)  # inside forward() of a Function nothing is recorded

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)  # again
        torch.autograd.backward(y, gradient)  # the parameters' gradients are added on the way
        return None, x.grad


def gradients_of(run, module, x):
    module.zero_grad()
    x = x.detach().requires_grad_()
    run(x).square().sum().backward()
    return [x.grad, *(p.grad for p in module.parameters())]

# %% tags=["nbval-check-output"]
exact, x = models.transformer.Block(toy).double(), torch.randn(2, 50, 128, dtype=torch.float64)
pairs = zip(gradients_of(exact, exact, x), gradients_of(lambda x: Recompute.apply(exact, x), exact, x), strict=True)
largest = max((a - b).abs().max().item() for a, b in pairs)
assert largest < 1e-12
print("the same gradients in fp64, to 1e-12")

# %% [markdown]
# The name in the literature is *activation checkpointing* (nothing is written to disk). `torch.utils.checkpoint` does the same with more care: several inputs, autocast, the state of the random generators, and it stops the second forward as soon as the last tensor that backward needs exists. Always pass `use_reentrant=False`: the older way, which is the function above, does not work where no input needs a gradient.
#
# Not everything is equally dear to make again. A matrix product takes $2h$ operations for each number it makes, a norm or a GELU a handful. *Selective* recomputation keeps results that are dear and makes cheap ones again. What a block then holds, for $n$ tokens in fp32:
#
# - nothing recomputed: $n\,(24h + 8k + 8f + 4a + 16)$
# - results of products and of attention kept: $n\,(4h + 4\,(4h + 2k + f) + 4a)$, that is its input, what q, k, v, attention, its output matrix and the two of the MLP make, and attention's statistics
# - all recomputed: $4\,n\,h$, its input
#
# Three shapes, three ways, counted by hooks. What a policy keeps is not saved by autograd: it is told to the same counter.

# %% tags=["nbval-check-output"]
def counted(of, word: str, seq: int = 64) -> int:
    """Bytes that one block of a shape holds for backward, by hooks."""
    block, x = models.transformer.Block(of), torch.randn(2, seq, of.hidden, requires_grad=True)  # [B, T, H]
    rotary = models.transformer.rotary_tables(seq, of.head_size) if of.positions == "rope" else None
    with SavedTensors(block, *(rotary or ())) as kept:
        run = block if word == "none" else recompute.recomputed(block.forward, word, note=kept.note)
        y = run(x, rotary)
    return kept.bytes


shapes = [toy, shape("gpt2"), llama("llama, 2 of 8 heads", 1, 256, 8, 2, 688)]
rows = [["one block, 128 tokens", "recompute", "counted by hooks", "by the formula"]]
for of in shapes:
    for word in ("none", "op", "full"):
        by_formula = activations.saved(of, "fp32", word).at(activations.dims(of, 128))
        by_hooks = counted(of, word)
        assert by_hooks == by_formula
        rows.append([of.name, word, f"{by_hooks:,}", f"{by_formula:,}"])
print(columns_text(rows, left=2))

# %% [markdown]
# Equal to the byte. The formula of the Llama style block is yours to write, in exercise 03.1.
#
# Selective recomputation keeps more than it must: the results of attention's output matrix and of the MLP's last are only *added* to something, and no derivative asks for them. A policy that keeps operations by kind cannot know that.
#
# Now the whole step, operation after operation, on fake tensors:

# %%
pretend = dryrun.fake()
with pretend:
    rehearsal = models.training(small, job)  # shapes, and no memory
    rehearsal()  # the first step makes the optimizer's state


def rehearse() -> Trace:
    """Live bytes after each operation of a step, as the rehearsal's model is now."""
    with pretend, Trace() as traced:
        traced.own(rehearsal.model, rehearsal.optimizer)
        rehearsal()
    return traced


curves = {}
for name, word in {"nothing recomputed": "none", "products, attention kept": "op", "all recomputed": "full"}.items():
    recompute.place(rehearsal.model, [word] * L)  # one word for each block
    curves[name] = rehearse().points
OverAStep(curves, "Recomputation lowers the stairs; the needle at the loss stays", "dry run on fake tensors")

# %% [markdown]
# Forward climbs one stair a block, backward descends. Recomputed, each stair is as high as a block's input, backward is longer, and on its way down one block at a time comes back in full. The needle is the loss. No recomputation of blocks touches it.
#
# ### The logits, and who holds them
# For each token the head makes one number for each word of the vocabulary. Cross-entropy makes log-probabilities of them, and its backward two more tensors of that size. In fp32 each has $4\,n\,V$ bytes. How many of the four are alive together depends on a *name*:

# %% tags=["nbval-check-output"]
def in_the_loop(hidden, weight, targets):
    logits = hidden @ weight.T  # [n, V]; the name keeps it until it is bound to the next step's
    F.cross_entropy(logits, targets).backward()


def in_a_function(hidden, weight, targets):
    F.cross_entropy(hidden @ weight.T, targets).backward()  # nobody asks for the logits again


def peak_of(loss_and_backward, n=512, h=64, V=4096) -> int:
    """The highest number of live bytes above the start."""
    hidden, weight = torch.randn(n, h, requires_grad=True), torch.randn(V, h, requires_grad=True)
    targets = torch.randint(V, (n,))
    with measure.LiveStorages() as live:
        live.own(hidden, weight, targets)
        before = live.live
        loss_and_backward(hidden, weight, targets)
    return live.peak - before


for way in (in_the_loop, in_a_function):
    print(f"{way.__name__:14s} {peak_of(way) / (512 * 4096):.1f} bytes for each token and word of the vocabulary")

# %% [markdown]
# $16\,n\,V$ where the training loop has a variable `logits`, $12\,n\,V$ where the loss is computed in the model and only the loss comes out. Log-softmax saves its *result*, so nothing but the name needs the logits. Under autocast the held logits have two bytes each and the rest is fp32 all the same: $14\,n\,V$. Published totals for the same model differ by such a name. And it outlives the step: `logits` is there in `optimizer.step()` and in the next forward, until the line that binds it anew has run.
#
# Cross-entropy is a sum over tokens, so its needle can be cut: take some rows, compute their logits and their part of the loss, and forget the logits. Recompute them when the part's gradient arrives.

# %%
def part_of_loss(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum")


def chunked_loss(hidden, weight, targets, parts: int):
    """Mean cross-entropy of hidden [n, H], weight [V, H], targets [n]; logits exist for one part at a time."""
    rows = zip(hidden.chunk(parts), targets.chunk(parts), strict=True)
    total = sum(checkpoint(part_of_loss, some, weight, of_them, use_reentrant=False) for some, of_them in rows)
    return total / len(targets)  # the sum over all tokens, once divided


def loss_peak(n: int, h: int, V: int, parts: int = 0, held: bool = False) -> int:
    """Bytes of loss and its backward, fp32. parts 0: the whole at once."""
    if parts == 0:
        return (16 if held else 12) * n * V
    c = math.ceil(n / parts)  # rows in a part
    table = 4 * V * h  # the gradient of the output matrix: summed so far, of this part, and the two added
    return max(12 * c * V + table, 4 * c * V + 2 * table, 3 * table) + 4 * h * (n - c)

# %% tags=["nbval-check-output"]
rows = [["loss in", "predicted, bytes a token and word", "counted"]]
for parts in (0, 2, 4, 8, 16, 64):
    cut = (lambda hid, w, t: chunked_loss(hid, w, t, parts).backward()) if parts else in_a_function
    rows.append([f"{parts or 1} part{'s' if parts else ''}", f"{loss_peak(512, 64, 4096, parts) / (512 * 4096):.2f}",
                 f"{peak_of(cut) / (512 * 4096):.2f}"])
print(columns_text(rows))

# %% [markdown]
# Cutting finer stops paying when three copies of the output matrix's gradient (the sum so far, this part's, and the new sum) are larger than a part's logits: $12\,V h$ stays however fine the parts are. The price is one more product of the head, unless the gradients are made in forward already; that is exercise 03.3.
#
# ### Which blocks, and how far apart
# With the needle cut, the stairs lead again. You may not need to recompute every block: each that keeps what it saves spares its second forward. Which should keep?
#
# Walk down backward with the plan in hand. When block $i$ has its gradient, the blocks *below* it hold what the plan says. Block $i$ itself is there in full, kept or brought back. The blocks above have let go, and their weights' gradients have come. So the peak is the largest of these, the loss, and `step()`:

# %%
parts = 8
with dryrun.fake():
    cost = block_cost(models.transformer.Block(small), torch.randn(job.micro_batch, job.seq, h))  # saved, input, work
count, tensors = predict.parameters(small), len(list(models.Transformer(small).parameters()))


def step_peak(plan: list[str], loss: int) -> int:
    """Bytes at the highest moment of a step in fp32 with a fused AdamW, for a plan of none and full."""
    states = 12 * count.total + 4 * tensors + 16 * n + 8 * job.seq  # weights, moments, step counts, batch, positions
    held = [cost.saved if word == "none" else cost.input for word in plan]
    at_loss = states + sum(held) + n * (8 * h + 8) + loss  # the head's norm saved its input, its result, 2 numbers
    head = 4 * V * h + 8 * h  # gradients of output matrix and last norm
    above = [4 * count.block * (L - 1 - i) for i in range(L)]  # gradients of the blocks that are done
    backward = [states + head + above[i] + sum(held[:i]) + cost.saved + cost.work for i in range(L)]
    return max(at_loss, *backward, states + 4 * count.total)

# %% tags=["nbval-check-output"]
losses.with_loss(rehearsal, partial(chunked_loss, parts=parts))
half = L // 2
placements = {"none": ["none"] * L, "the first half": ["full"] * half + ["none"] * (L - half),
              "the last half": ["none"] * (L - half) + ["full"] * half,
              "every second, from the first": ["full", "none"] * half,
              "every second, to the last": ["none", "full"] * half, "all": ["full"] * L}
rows = [["recomputed", "computed, MiB", "dry run, MiB"]]
for name, plan in placements.items():
    recompute.place(rehearsal.model, plan)
    computed, dry = step_peak(plan, loss_peak(n, h, V, parts)), rehearse().peak
    assert abs(computed / dry - 1) < 0.005
    rows.append([name, f"{computed / MiB:.1f}", f"{dry / MiB:.1f}"])
print(columns_text(rows))

# %% [markdown]
# Four of the plans recompute the same number of blocks and take the same time. They differ by most of a block's saved bytes: where the *last* block is recomputed, it comes back in full while all the others still hold theirs. Where the last ones keep, they have let go by the time the first early one comes back. **Recompute the early blocks and keep the late ones.** A plan that adds up what is kept and stops there cannot see this: it gives all four the same peak.
#
# The other textbook placement puts *several* blocks between two kept inputs, and says: every $\sqrt{L}$ blocks. Then $L/K$ inputs are held and $K$ blocks come back at once:

# %% tags=["nbval-check-output"]
blocks = list(recompute.place(rehearsal.model, ["none"] * L).blocks)
rows = [["blocks between kept inputs", "⌈L/K⌉ · input + K · saved, MiB", "dry run of the step, MiB"]]
for K in (k for k in range(1, L + 1) if L % k == 0):
    rehearsal.model.blocks = torch.nn.ModuleList(blocks)
    recompute.segments(rehearsal.model, K)
    held = math.ceil(L / K) * cost.input + K * cost.saved
    rows.append([f"{K}", f"{held / MiB:.1f}", f"{rehearse().peak / MiB:.1f}"])
print(columns_text(rows))
del rehearsal

# %% [markdown]
# The rule is right for what it assumes: a chain whose links save as much as their input. A transformer block saves many times its input, and $K$ of them come back at once. The least is near $\sqrt{L \cdot \text{input} / \text{saved}}$:

# %% tags=["nbval-check-output"]
rows = [["bf16, 8k tokens", "layers", "saved / input", "√L", "best K", "GiB: K = 1", "K = √L", "best K"]]
for of in (shape("gpt2-xl"), large, shape("llama-3.1-70b"), shape("llama-3.1-405b")):
    dims = activations.dims(of, 8192)
    one, each = (activations.saved(of, "bf16", word).at(dims) for word in ("none", "full"))
    sums = {K: math.ceil(of.layers / K) * each + K * one for K in range(1, of.layers + 1)}
    root, best = round(math.sqrt(of.layers)), min(sums, key=sums.get)
    rows.append([of.name, f"{of.layers}", f"{one / each:.1f}", f"{root}", f"{best}",
                 *(f"{sums[K] / GiB:.1f}" for K in (1, root, best))])
print(columns_text(rows))

# %% [markdown]
# The rule is from 2016, and followed to the letter it costs more than one kept input a block, which is what frameworks do by default. Only the deep models gain, and from two blocks, not from their root.
#
# ### Elsewhere instead of again
# A saved tensor can also leave the device and come back: the same two hooks, with a copy each way. `torch.autograd.graph.save_on_cpu(pin_memory=True)` is that pair. On a CPU it has nowhere to go: `tensor.cpu()` is the tensor. So here the host is *played*, by memory that torch does not count; what it shows is which bytes leave, not how fast a link is.

# %%
def to_a_played_host(model):
    """Hooks that take what autograd saves out of torch's memory, except the weights, which stay anyway."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        stays = tensor.untyped_storage().data_ptr() in weights
        return tensor if stays else tensor.detach().numpy().copy()

    return saved_tensors_hooks(pack, lambda kept: kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept))


def offloaded(training):
    """A training whose saved tensors wait elsewhere."""
    whole, on_gpu = training.loss, training.device.startswith("cuda")

    def loss(tokens, targets):
        with save_on_cpu(pin_memory=True) if on_gpu else to_a_played_host(training.model):
            return whole(tokens, targets)

    training.loss = loss
    return training

# %% [markdown]
# Two traps. `save_on_cpu` does not know weights: it copies them out too, and saves nothing by it. And a tensor that several operations save, as q, k and v all save the norm's result, goes out once for each.

# %% [markdown]
# ## Measure
# The levers, each on the same model and the same batch (a smaller batch is a lever too, and has lesson 05 to itself). First that they are levers on memory and on nothing else: the gradients of one step in fp64.

# %%
levers = {
    "plain": {},
    f"loss in {parts} parts": dict(parts=parts),
    "products and attention kept": dict(plan=["op"] * L),
    "all recomputed": dict(plan=["full"] * L),
    "offload" if here.kind == "cuda" else "offload, played": dict(offload=True),
}


def built(how: dict, device: str = "cpu"):
    """A training of `small` with some levers pulled."""
    training = models.training(small, job, device, seed)
    recompute.place(training.model, how.get("plan", ["none"] * L))
    if "loss" in how or "parts" in how:
        losses.with_loss(training, how.get("loss") or partial(chunked_loss, parts=how["parts"]))
    return offloaded(training) if how.get("offload") else training

# %% tags=["nbval-check-output"]
text, targets = torch.randint(V, (2, 32)), torch.randint(V, (2, 32))  # [B, T] each


def step_gradients(how: dict) -> torch.Tensor:
    training = built(how)
    training.model.double()
    training.loss(text, targets).backward()
    return torch.cat([p.grad.flatten() for p in training.model.parameters()])


reference = step_gradients({})
for name, how in levers.items():
    assert (step_gradients(how) - reference).abs().max() < 1e-12, name
print("the same gradients, to 1e-12")

# %% [markdown]
# Then it trains, with the loss in parts and the first half recomputed.

# %% tags=["nbval-ignore-output"]
training = built(dict(parts=parts, plan=placements["the first half"]), here.torch)
batches, curve = models.text.batches(job.micro_batch, job.seq, seed), []
with watch("loss in parts") as w:
    for _ in range(pick(profile, smoke=8, lab=12, full=40)):
        curve.append(training.step(*(t.to(here.torch) for t in next(batches))).item())
        w.step(job.micro_batch)
assert curve[-1] < curve[0]
del training

# %% [markdown]
# The peaks, each from one step in a process of its own, by the allocator's events (on a GPU: its own statistics). Besides the levers: the plain step in a loop that has a name for the logits, and two plans that recompute half of the blocks, with the loss in parts.

# %% tags=["nbval-ignore-output"]
def held_logits(hidden, weight, targets, named=[]):  # noqa: B006 (the list is the name that holds them)
    named[:] = [hidden @ weight.T]
    return F.cross_entropy(named[0], targets)


plans = {name: dict(parts=parts, plan=placements[name]) for name in ("the first half", "the last half")}
runs = {**levers, "held": dict(loss=held_logits), **plans}
with ThreadPoolExecutor(2 if here.kind == "cpu" else 1) as side_by_side:  # a process each: they share no memory
    peaks = side_by_side.map(lambda how: measure.memory(built, how, here.torch), runs.values())
seen = dict(zip(runs, peaks, strict=True))
for name, memory in seen.items():
    print(f"{name:28s} {memory.peak / MiB:8.1f} MiB at the {memory.peak_at}")

# %% [markdown]
# The times, each lever in turn with the plain step, so that a machine that slows down slows both.

# %% tags=["nbval-ignore-output"]
plain, ratios = built({}, here.torch), {}
for name, how in levers.items():
    if how:
        ratios[name] = measure.alternate(built(how, here.torch), plain, rounds=pick(profile, smoke=5, lab=5, full=9),
                                         names=(name, "plain"))
        print(ratios[name])

# %% [markdown]
# ## Compare
# What the blocks hold, counted by hooks in the network itself; and the time of a step with all of it recomputed.

# %% tags=["nbval-ignore-output"]
ways = {"nothing recomputed": "none", "products and attention kept": "op", "all recomputed": "full"}
by_formula = {name: L * activations.saved(small, "fp32", word).at(activations.dims(small, n)) / MiB
              for name, word in ways.items()}
by_hooks = {name: L * counted(small, word, seq=n // 2) / MiB for name, word in ways.items()}
compare(mine, column("computed", by_formula, "MiB"), column("measured", by_hooks, "MiB", "cpu, saved-tensor hooks"))

# %% tags=["nbval-ignore-output"]
compare(mine_time, column("computed", {"step, all recomputed": 4 / 3}, "× the plain step", source="8N against 6N"),
        column("measured", {"step, all recomputed": ratios["all recomputed"].value}, "× the plain step", here.label))

# %% [markdown]
# Four thirds is the rule of operations: a forward pass is a third of a step, and is done twice. Both ways off are usual. The head and the optimizer are not repeated, and the second forward stops before its end: less. Forward may be more than a third where backward's products run at a better rate, and a small step pays for Python: more.
#
# Now the peaks of whole steps. Held or not, whole or in parts: the differences were predicted before anything ran.

# %% tags=["nbval-ignore-output"]
ledger = predict.memory(small, job)
whole, cut = loss_peak(n, h, V), loss_peak(n, h, V, parts)
expected = {
    "held": ledger.peak + 4 * n * V,
    "plain": ledger.peak,
    f"loss in {parts} parts": step_peak(["none"] * L, cut),
    "all recomputed": step_peak(["full"] * L, whole),
}
compare(column("computed", {name: size / MiB for name, size in expected.items()}, "MiB"),
        column("measured", {name: seen[name].peak / MiB for name in expected}, "MiB", here.label))

# %% tags=["nbval-ignore-output"]
in_parts = f"loss in {parts} parts"
for before, after in (("held", "plain"), ("plain", in_parts), ("held", in_parts)):
    predicted, found = (table[before] - table[after] for table in
                        (expected, {name: memory.peak for name, memory in seen.items()}))
    assert abs(found / predicted - 1) < 0.05, (before, after)
    print(f"from {before} to {after}: predicted to fall by {predicted / MiB:.2f} MiB, measured {found / MiB:.2f}")

# %% [markdown]
# ### A plan, a claim, and a measured peak
# A budget is given, and the two plans that recompute half of the blocks. The obvious bookkeeping adds up states, what every block holds, and the loss. By it both plans fit.

# %%
budget = int(1.02 * step_peak(placements["the first half"], cut))


def claim(plan: list[str]) -> int:
    """What a plan would need if nothing came back: states, all that is held, the loss."""
    held = sum(cost.saved if word == "none" else cost.input for word in plan)
    return 12 * count.total + held + n * (8 * h + 8) + cut


def verdict(size: float) -> str:
    return f"{size / MiB:.1f} ({'fits' if size <= budget else 'over'})"

# %% tags=["nbval-ignore-output"]
rows = [[f"budget {budget / MiB:.1f} MiB", "the plan's own claim", "computed instant by instant", "measured"]]
for name, how in plans.items():
    rows.append([name, verdict(claim(how["plan"])), verdict(step_peak(how["plan"], cut)), verdict(seen[name].peak)])
print(columns_text(rows))

# %%
with dryrun.fake():
    for name, how in plans.items():
        training = built(how)
        training()
        try:
            with measure.budget(budget, training.model, training.optimizer):
                training()
            print(f"{name}: the step passes")
        except MemoryError as refused:
            print(textwrap.fill(f"{name}: {refused}", 100))
    del training

# %% [markdown]
# The claim is not wrong about what is held at the end of forward. It is wrong about when the peak is.
#
# ### Bytes for a millisecond
# Which lever first? The one that buys the most bytes for the time it costs. Time is a ratio times the plain step; where the middle half of the rounds reaches below one, the cost cannot be told from none here and now.

# %% tags=["nbval-ignore-output"]
def ranked() -> list[list[str]]:
    rows = []
    for name, ratio in ratios.items():
        saved = (seen["plain"].peak - seen[name].peak) / MiB
        cost_ms = (ratio.value - 1) * ratio.b.seconds * 1e3
        free = ratio.low <= 1
        rows.append((saved / max(cost_ms, 1e-3) if not free else math.inf, saved,
                     [name, f"{saved:.1f}", f"{cost_ms:+.1f}", "free here" if free else f"{saved / cost_ms:.2f}"]))
    return [row for _, _, row in sorted(rows, key=lambda row: row[:2], reverse=True)]


print(columns_text([["lever", "MiB saved", "ms a step", "MiB for a ms"], *ranked()]))
print(f"measured on {here.label}; a plain step takes {seconds_text(ratios['all recomputed'].b.seconds)}")

# %% tags=["nbval-ignore-output"]
points = [Way("plain", seen["plain"].peak, 1.0, 1.0, 1.0),
          *(Way(name, seen[name].peak, ratio.value, ratio.low, ratio.high) for name, ratio in ratios.items())]
gone = 1 - seen["all recomputed"].peak / seen["plain"].peak
Tradeoff(points, f"Recomputing all blocks takes {gone:.0%} off the peak, for {ratios['all recomputed'].value:.2f} × the time",
         here.label)

# %% [markdown]
# The row *offload, played* is simulated: its time is that of a copy within memory, and its bytes are those that would have left. Three readings of this table that go wrong. *The order holds elsewhere*: it does not; a GPU computes a hundred times as fast and its link hardly at all faster, so recomputation rises and offload falls. *Two levers save the sum*: each lowers the instant at which its bytes are alive, and the next highest then leads. *Selective recomputation is slow*: here it pays Python for every operation that it looks at; what it recomputes is little, and on a GPU that price is hidden behind the kernels or compiled away.

# %% [markdown]
# ## At full size
# The question of the beginning: Llama 3.1 8B in bf16, one sequence of 8k and of 32k tokens. Each of eight cards has its share of the states. On top of that and of what the blocks hold comes either the loss, with 12 bytes for each token and word, or one block that is brought back.

# %% tags=["nbval-check-output"]
def at_full_size(tokens: int, word: str, wide: int = 12, parts: int = 1) -> dict[str, float]:
    """Bytes on one of eight cards: its share of the states, what all blocks hold, and the larger of what comes on top:
    the loss, `wide` bytes for each token and word, or one block that is brought back."""
    where = activations.dims(large, tokens)
    one = {w: activations.saved(large, "bf16", w).at(where) for w in ("none", "op", "full")}
    loss = wide * math.ceil(tokens / parts) * large.vocab
    if parts > 1:
        loss = max(loss, 3 * 2 * large.vocab * large.hidden)  # the output matrix's gradient in bf16, three times
    again = one["none"] - one["full"] if word != "none" else 0
    top = {"the loss": loss} if loss > again else {"one block, brought back": again}
    return {"states, an eighth": states, "held by the blocks": large.layers * one[word], **top}


ways = {"nothing": ("none",), "selective": ("op",), "all; logits held": ("full", 16), "all": ("full",),
        "all; loss in 64 parts": ("full", 12, 64)}
cases = {f"{tokens // 1024}k, {name}": at_full_size(tokens, *how)
         for tokens in (8192, 32768) for name, how in ways.items()}
rows = [["recomputed", "states", "blocks", "on top", "GiB", "together", f"of {h100.capacity_gib} GiB"]]
for name, made_of in cases.items():
    (_, first), (_, held), (top, size) = made_of.items()
    total = sum(made_of.values())
    rows.append([name, *(f"{part / GiB:.1f}" for part in (first, held)), top, f"{size / GiB:.1f}", f"{total / GiB:.1f}",
                 "yes" if total < h100.capacity else "no"])
print(columns_text(rows))

# %%
needle = cases["32k, all"]["the loss"] / cases["32k, all"]["held by the blocks"]
Stacks(cases, f"At 32k tokens, every block recomputed, the loss needs {needle:.1f} × what the blocks hold", "computed",
       (f"{h100.title}: {h100.capacity_gib} GiB", h100.capacity))

# %% [markdown]
# The out-of-memory at 32k was a name. With the logits held it does not fit; without, it just does, if nothing else takes its share: the parameters that are gathered for a layer, the allocator's reserve, the context. Cut into parts the loss vanishes, and 32k takes about what 8k took.
#
# Others have counted the same model, by other means. Their figures beside this formula:

# %% tags=["nbval-check-output"]
where = activations.dims(large, 32768)
one, stream = activations.saved(large, "bf16", "none").at(where), 2 * 32768 * large.hidden
logits = 32768 * large.vocab
computed = {
    "copies of the hidden state that a layer saves": f"{one / stream:.1f}",
    "one layer": f"{one / GiB:.1f}",
    "inputs of the 32 layers": f"{large.layers * stream / GiB:.1f}",
    "logits in fp32": f"{4 * logits / GiB:.2f}",
    "with checkpointing": f"{(large.layers * stream + one + 4 * logits) / GiB:.1f}",
    "without checkpointing": f"{(large.layers * one + 4 * logits) / GiB:.0f}",
}
rows = [["Llama 3.1 8B, 32k tokens", "published", "computed", "unit"]]
theirs = [row for row in published("activations") if row["case"] == "A20"]
rows += [[row["what"], row["value"], computed[row["what"]], row["unit"]] for row in theirs]
print(columns_text(rows))

# %% [markdown]
# The author counted copies of the hidden state in another implementation and found a little more than ours saves; the coefficient belongs to the implementation, norms and kernels included, and is a thing to measure once and not to quote. Two of the lines add up what is not alive together: one layer comes back when the loss is long gone. And the logits stand there once. What the loss makes of them comes on top, and that is what failed in the question.
#
# The formula that is quoted most is Korthikanti's, for a GPT with dropout in 16 bits and attention scores that are kept: $n\,h\,(34 + 5\,a\,s/h)$ bytes. Its second term is the scores. Here it is for a model of the 8B's width, beside a fused kernel's share:

# %% tags=["nbval-check-output"]
formula = {row["quantity"]: float(row["value"]) for row in published("activations") if row["unit"] == "bytes"}
rows = [["GiB a layer, for tokens", "constant", "scores", "a fused kernel's statistics"]]
for s in (2048, 8192, 32768):
    per = s * large.hidden
    rows.append([f"{s:,}", f"{formula['constant'] * per / GiB:.2f}",
                 f"{formula['attention'] * large.heads * s / large.hidden * per / GiB:.2f}",
                 f"{4 * large.heads * s / GiB:.3f}"])
print(columns_text(rows))
for row in published("activations"):
    if row["unit"] == "%":
        print(f"published: {row['what']}: {row['quantity']} {row['value']} %\n    {row['source']}")

# %% [markdown]
# Their *selective* recomputation threw away exactly that second term: the softmax and the scores, many bytes and few operations. A fused attention kernel does it for everybody, so the switch that is called selective in today's libraries has to mean something else. Ask what it keeps.
#
# Would offload do? For one token and one block on this card, from its data sheet: the time to compute its forward pass, and to send what it saves over the link.

# %% tags=["nbval-check-output"]
where = activations.dims(large, 1)
operations = 2 * predict.parameters(large).block + 2 * 8192 * large.hidden  # products; causal attention over 8k
print(f"forward of one block: {seconds_text(operations / (h100.achievable_bf16 * 1e12))} a token (computed from the "
      "published rate of a large product)")
for name, word in (("all that it saves", "none"), ("its input", "full")):
    size = activations.saved(large, "bf16", word).at(where)
    print(f"sending {name}, {size:,} bytes: {seconds_text(size / (h100.pcie_gb_s * 1e9))} a token at "
          f"{h100.pcie_gb_s:g} GB/s")

# %% [markdown]
# To send everything takes several times as long as to compute it again: recomputation wins. To send only the inputs of recomputed blocks takes a fraction of a forward pass, and can hide behind it. That is where offload earns its place: on top of recomputation, not instead of it.

# %% [markdown]
# ## Exercises
# ### 03.1 What a Llama block saves
# Write the bytes that one block of the Llama style holds for backward in fp32, for $n$ tokens and widths $h$, $k$ (keys), $f$ and heads $a$, under `recompute` `"none"`, `"op"` and `"full"`. To the byte, the block's input included, weights and rotary tables not. What differs from GPT-2's block: no biases; q and k are rotated before attention sees them, and the rotation itself saves nothing but its tables; the MLP is `down(silu(gate(x)) * up(x))`; and RMSNorm on a CPU is made of small operations that save, besides its input and its result (which the next products save), the normalised input before it is multiplied by the weight, and one number a token.

# %% tags=["stub"] exercise="03.1"
def llama_saves(n: int, h: int, k: int, f: int, a: int, recompute: str) -> int:
    """Bytes that one block holds for backward."""
    ...


# %% tags=["solution"] exercise="03.1"
def llama_saves(n: int, h: int, k: int, f: int, a: int, recompute: str) -> int:
    """Bytes that one block holds for backward."""
    if recompute == "full":
        return 4 * n * h
    if recompute == "op":
        products = h + 2 * k + h + h + 2 * f + h  # q; k and v; attention; its output; gate and up; down
        return 4 * n * (h + products) + 4 * n * a
    norms = 2 * (3 * 4 * h + 4)  # input, normalised, result, one number a token; twice
    attention = 4 * (h + 2 * k + h) + 4 * a  # q and k rotated, v, the result, the statistics
    mlp = 4 * 4 * f  # gate, its silu, up, their product
    return n * (norms + attention + mlp)


# %% tags=["check"] exercise="03.1"
check("03.1", llama_saves)

# %% [markdown]
# ### 03.2 Who holds the logits?
# How many bytes for each token and word of the vocabulary does the loss need at its highest moment, above what is there before the head? The vocabulary is much larger than the hidden width, so nothing else counts. Whole numbers.
#
# - **A** fp32; `logits = model(x)` in the training loop, then cross-entropy and backward
# - **B** fp32; the model computes the loss itself and returns only that
# - **C** bf16 autocast; `logits` in the training loop
# - **D** fp32, in the loop, and the loop also keeps `probabilities = logits.detach().softmax(-1)` for a metric
# - **E** as B, under `torch.no_grad()`, for an evaluation

# %% tags=["stub"] exercise="03.2"
answer_2 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}

# %% tags=["solution"] exercise="03.2"
answer_2 = {
    "A": 16,  # logits, log-probabilities, and two gradients
    "B": 12,  # the logits are gone when backward begins
    "C": 14,  # the loss works in fp32; what is held has two bytes
    "D": 20,  # one more tensor of that size
    "E": 8,  # logits, and log-probabilities made from them
}

# %% tags=["check"] exercise="03.2"
check("03.2", answer_2)

# %% [markdown]
# ### 03.3 A chunked cross-entropy that computes nothing twice
# The lesson's `chunked_loss` makes each part's logits twice. Write one that does not: in forward, for each part, make the logits, the loss, *and the gradients* of hidden states and weight, then forget the logits. Backward only multiplies by what arrives. It has to be a function of `hidden` [n, H], `weight` [V, H], `targets` [n] that returns the mean over the tokens whose target is not −100 (that is `ignore_index`), and is differentiable in both. The check counts values, gradients, the peak, and the products of the size of the head.

# %% tags=["stub"] exercise="03.3"
def lean_loss(hidden, weight, targets, parts: int):
    """Mean cross-entropy over the targets that are not -100."""
    ...


# %% tags=["solution"] exercise="03.3"
class LeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, parts):
        valid = (targets != -100).sum()
        total, for_hidden, for_weight = hidden.new_zeros(()), [], torch.zeros_like(weight)
        for some, of_them in zip(hidden.chunk(parts), targets.chunk(parts), strict=True):
            with torch.enable_grad():
                x, w = some.detach().requires_grad_(), weight.detach().requires_grad_()
                part = F.cross_entropy(x @ w.T, of_them, reduction="sum") / valid
            of_x, of_w = torch.autograd.grad(part, (x, w))
            total += part.detach()
            for_hidden.append(of_x)
            for_weight += of_w
        ctx.save_for_backward(torch.cat(for_hidden), for_weight)
        return total

    @staticmethod
    def backward(ctx, gradient):
        for_hidden, for_weight = ctx.saved_tensors
        return gradient * for_hidden, gradient * for_weight, None, None


def lean_loss(hidden, weight, targets, parts: int):
    """Mean cross-entropy over the targets that are not -100."""
    return LeanLoss.apply(hidden, weight, targets, parts)


# %% tags=["check"] exercise="03.3"
check("03.3", lean_loss)

# %% [markdown]
# ### 03.4 Checkpoints under a budget
# Blocks of different widths stand in a row. For each you are given, in bytes, what it `saved` when it keeps, its `input`, which is all that it holds when it is recomputed, and the `work` that its backward needs on top of all that it saved; and the `flops` of its forward. Gradients exist already, from an earlier micro-batch, so they are no part of it. Return one word a block, `"none"` or `"full"`, so that the measured peak above the start stays within the budget, with as few recomputed FLOPs as any plan needs. There are at most eight blocks.

# %% tags=["stub"] exercise="03.4"
def place(blocks, budget: int) -> list[str]:
    """A word for each block, the first block first. blocks: objects with saved, input, work (bytes) and flops."""
    ...


# %% tags=["solution"] exercise="03.4"
def place(blocks, budget: int) -> list[str]:
    """A word for each block, the first block first. blocks: objects with saved, input, work (bytes) and flops."""
    from itertools import product

    def peak(plan):
        held = [b.saved if word == "none" else b.input for b, word in zip(blocks, plan, strict=True)]
        return max(sum(held[:i]) + b.saved + b.work for i, b in enumerate(blocks))

    def price(plan):
        return sum(b.flops for b, word in zip(blocks, plan, strict=True) if word == "full")

    plans = product(("none", "full"), repeat=len(blocks))
    return list(min((plan for plan in plans if peak(plan) <= budget), key=price))


# %% tags=["check"] exercise="03.4"
check("03.4", place)

# %% [markdown]
# ### 03.5 Mend the recomputation
# `Recompute` in this lesson is wrong for a block with dropout: the second forward draws another mask. Write `recomputed(function, x)` that is right: the same gradients as without recomputation, nothing kept but `x`, the function called once in forward and once in backward, and the random numbers that come *after* backward the same as if nothing had been recomputed. CPU is enough; `function` is a module or a function of one tensor. You may use `torch.autograd.Function`, but not `torch.utils.checkpoint`.

# %% tags=["stub"] exercise="03.5"
def recomputed(function, x):
    """function(x), of which backward finds nothing but x."""
    ...


# %% tags=["solution"] exercise="03.5"
class Mended(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.state = function, torch.get_rng_state()  # before the first mask is drawn
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.function(x)
        torch.set_rng_state(now)  # as if nothing had been drawn
        torch.autograd.backward(y, gradient)
        return None, x.grad


def recomputed(function, x):
    """function(x), of which backward finds nothing but x."""
    return Mended.apply(function, x)


# %% tags=["check"] exercise="03.5"
check("03.5", recomputed)

# %% [markdown]
# ### 03.6 Rank the levers
# Write what a table of levers is for. Given the plain step's peak (GiB) and time (ms), and for each lever its own peak and time, return the names of the levers that save memory, the best first: those that cost no time before all others, among themselves by what they save; then the rest by GiB for a millisecond. The check also gives you rows that others published: torchtune's Llama 3.2 3B on one A100, where each row of the table is a step of one more lever.

# %% tags=["stub"] exercise="03.6"
def rank(plain: tuple[float, float], levers: dict[str, tuple[float, float]]) -> list[str]:
    """Names of the levers that save, best first. Values are (peak in GiB, time of a step in ms)."""
    ...


# %% tags=["solution"] exercise="03.6"
def rank(plain: tuple[float, float], levers: dict[str, tuple[float, float]]) -> list[str]:
    """Names of the levers that save, best first. Values are (peak in GiB, time of a step in ms)."""
    saved = {name: plain[0] - peak for name, (peak, _) in levers.items() if peak < plain[0]}
    costs = {name: levers[name][1] - plain[1] for name in saved}
    free = sorted((name for name in saved if costs[name] <= 0), key=saved.get, reverse=True)
    paid = sorted((name for name in saved if costs[name] > 0), key=lambda name: saved[name] / costs[name], reverse=True)
    return free + paid


# %% tags=["check"] exercise="03.6"
check("03.6", rank)

# %% [markdown]
# ### 03.7 How far apart?
# A chain of $L$ equal blocks, of which only every $K$-th input is kept, and $K$ blocks come back at once: $\lceil L/K \rceil$ inputs and $K$ times what a block saves. Which $K$ needs the least (in whole blocks)? Three chains; `ratio` is what a block saves, in multiples of its input.
#
# - **A** $L = 64$, ratio 1: the chain of the square root rule
# - **B** $L = 32$, ratio 26: Llama 3.1 8B in bf16
# - **C** $L = 96$, ratio 6: a deep GPT with selective recomputation inside

# %% tags=["stub"] exercise="03.7"
answer_7 = {"A": ..., "B": ..., "C": ...}

# %% tags=["solution"] exercise="03.7"
chains = {"A": (64, 1), "B": (32, 26), "C": (96, 6)}
answer_7 = {name: min(range(1, length + 1), key=lambda K: math.ceil(length / K) + K * ratio)
            for name, (length, ratio) in chains.items()}

# %% tags=["check"] exercise="03.7"
check("03.7", answer_7)

# %% [markdown]
# ### 03.8 Which lever moves the peak?
# Four jobs in fp32 with AdamW (`foreach`) on one device. For each, one of three levers lowers the peak most: `recompute` every block, compute the loss `in parts` (32), or a `fused` optimizer. Only one is pulled. For A, B and D give the new peak as well, by the ledger.
#
# - **A** GPT-2 medium, 16 × 1024 tokens
# - **B** GPT-2 XL, 1 × 1024 tokens
# - **C** GPT-2, 16 × 1024 tokens, every block recomputed already
# - **D** GPT-2 with a vocabulary of 256 bytes, 16 × 1024 tokens

# %% tags=["stub"] exercise="03.8"
answer_8 = {
    "A": ..., "B": ..., "C": ..., "D": ...,
    "A, new peak in GiB": ..., "B, new peak in GiB": ..., "D, new peak in GiB": ...,
}

# %% tags=["solution"] exercise="03.8"
def peak_gib(of, job: Job) -> float:
    return predict.memory(of, job).peak / GiB


long = Job(16, 1024)
answer_8 = {
    "A": "recompute",  # the loss leads, but most of what is alive at the loss is the blocks'
    "B": "fused",  # step() leads
    "C": "in parts",  # nothing but the loss is left to lower
    "D": "recompute",  # hardly any logits
    "A, new peak in GiB": peak_gib(shape("gpt2-medium"), long.but(recompute="full")),
    "B, new peak in GiB": peak_gib(shape("gpt2-xl"), Job(1, 1024, foreach=False, fused=True)),
    "D, new peak in GiB": peak_gib(shape("gpt2").but(vocab=256), long.but(recompute="full")),
}

# %% tags=["check"] exercise="03.8"
check("03.8", answer_8)

# %% [markdown]
# ## When it breaks
# You switch on checkpointing to fit a longer sequence. Nothing fails, the loss of the first step is the same to the last digit, and a week later the run is worse than the one before it, by a little. Somebody has set `preserve_rng_state=False`, because it saves a copy of the generator's state for each block and "our dropout is small".
#
# Here is one step of a block with dropout, three ways, from the same random state.

# %% tags=["nbval-check-output"]
class WithDropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = models.transformer.Block(toy)

    def forward(self, x):
        return F.dropout(self.block(x), 0.1)


torch.manual_seed(seed)
dropping, x = WithDropout().double(), torch.randn(2, 50, 128, dtype=torch.float64)
found = {}
for name, run in {"no recomputation": dropping,
                  "recomputed": partial(checkpoint, dropping, use_reentrant=False),
                  "recomputed, random state not kept": partial(checkpoint, dropping, use_reentrant=False,
                                                               preserve_rng_state=False)}.items():
    torch.manual_seed(seed)
    found[name] = torch.cat([g.flatten() for g in gradients_of(run, dropping, x)])
reference = found["no recomputation"]
for name, gradients in found.items():
    apart = ((gradients - reference).norm() / reference.norm()).item()
    print(f"{name:34s} {'the same' if apart < 1e-12 else 'other'} gradients")
    assert (apart < 1e-12) == (name != "recomputed, random state not kept") and (apart < 1e-12 or apart > 1e-3)

# %% [markdown]
# The gradient belongs to no function that was ever computed: the loss saw one mask, backward another. It is finite, of the right size, and wrong. No loss curve of one step shows it and no assertion of PyTorch does. What shows it is the test that you have just run: gradients with and without recomputation, from the same state, compared. Run it once for every block that draws random numbers, changes a buffer in forward (batch norm updates its statistics twice), or reads a global.

# %% [markdown]
# ## Explain it
# Without notes: **a step is out of memory at the loss, another in the middle of backward. For each, what is alive there, which levers lower it, and which do nothing?** Then:
#
# 1. Which of a block's operations save nothing, and why?
# 2. Why does it matter for the peak which half of the blocks is recomputed, and not for the time?
# 3. Two libraries publish totals for the same model that differ by a quarter of the logits' part. What do you look for in their training loops?
# 4. A colleague quotes "a checkpoint every √L layers". For which chain is that right?
# 5. You recompute all blocks and the step takes 1.2 times as long, not 1.33. Name two reasons.

# %% [markdown]
# ## Take away
# > **A block saves what its derivatives ask for: a formula in its widths, times the tokens.** Count it once by hooks; quote nobody's coefficient.
#
# > **Recomputation lowers the stairs, not the needle.** The loss takes 12 bytes for each token and word, 16 where a name holds the logits, and goes away only in parts.
#
# > **Plan by instants: early blocks again, late blocks kept.** Then measure the peak: a plan's own sum does not see what comes back.
#
# Reading: Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost* (arXiv 1604.06174), for the square root and what it assumes; Korthikanti et al. 2022 (arXiv 2205.05198), section 4 and 5; the notes on `torch.utils.checkpoint` and on hooks for saved tensors in PyTorch's documentation. Next: 04, where fewer bits are the lever.
