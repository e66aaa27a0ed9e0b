# %% [markdown]
# # 05 · Batch and accumulation
#
# How to train with a batch that does not fit and get its gradient exactly, what that costs, and how large a batch is worth having.
#
# **Minutes** 90 · **Hardware** cpu, gpu · **Needs** 01
#
# After this lesson you can
#
# - accumulate gradients that equal the big batch's, with unequal token counts and a short last window;
# - recognise the usual wrong versions by the gradients that they give;
# - predict the memory and the time of a step from its micro-batch, and measure the price of accumulation;
# - derive a schedule, its steps and its warm-up from a global batch and a memory budget;
# - measure the gradient noise scale, with its uncertainty, and say what a larger batch would buy.

# %%
import functools
import itertools
import time

import torch
import torch.nn.functional as F

from gpucourse import check, compare, draw, guess, hint, measure, models, predict, solution, watch
from gpucourse.catalog import Job, MiB, gpt, gpu, pick, published, seconds_text, shape
from gpucourse.evidence import column, columns_text
from gpucourse.live.micro_batches import MicroBatches
from gpucourse.live.rates import Rates
from gpucourse.measure.noise_scale import noise_scale
from gpucourse.measure.timing import quartiles
from gpucourse.measure.turns import in_turn
from gpucourse.predict.critical_batch import progress, samples, steps
from gpucourse.predict.steptime import ceiling, step_time

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of the weights, the text and the resampling

# %% [markdown]
# ## The question
# A published run trains GPT-2 on eight A100s, with 512 sequences of 1,024 tokens in every step. You have one card of 24 GB and want the same curve. Each layer is recomputed already, and the compute is in 16 bits already. The ledger says how far that goes.

# %% tags=["nbval-check-output"]
recipe = Job(seq=1024, precision="bf16-autocast", recompute="full", foreach=False, fused=True)
largest = max(b for b in range(1, 65) if predict.memory(shape("gpt2"), recipe.but(micro_batch=b)).fits("rtx-4090") == "yes")
print(f"largest micro-batch that is sure to fit {gpu('rtx-4090').title}: {largest} sequences; the recipe takes 512")

# %% [markdown]
# Three people know what to do. One takes the batch that fits and leaves the learning rate alone. One takes it and scales the learning rate down in proportion. One adds up the gradients of many small batches before each step: that is mathematically the same as the large batch, everyone says, only slower.
#
# The third tries it on fine-tuning data, with the same seed and the same samples, and the loss differs from the large batch's at the very first step. Nothing is random in it. And nobody has asked whether 512 sequences are worth having.

# %% [markdown]
# ## Predict
# A small model, and a step over a fixed number of sequences. It can be taken *whole*, all sequences in one forward and backward pass, or *in pieces* of one sequence, with one optimizer step after the last piece.
#
# Before you run anything: how many times as long does the step take in pieces as whole, and how many times as much memory does it need at its peak?

# %% tags=["setup"]
here = measure.device()
small = pick(profile,
             smoke=gpt("small", layers=2, hidden=128, heads=4, vocab=256, context=64),
             lab=gpt("small", layers=2, hidden=192, heads=4, vocab=256, context=64),
             full=gpt("small", layers=12, hidden=768, heads=12, vocab=256, context=512))
batch = pick(profile, smoke=16, lab=16, full=64)  # sequences in a step, however it is taken


@functools.cache
def trainer(micro_batch: int, accumulate: int):
    return models.training(small, Job(micro_batch, small.context, accumulate=accumulate), here.torch, seed)


def real_step(micro_batch: int, accumulate: int) -> None:
    """One training step on this machine: `accumulate` forward and backward passes, one step of the optimizer."""
    trainer(micro_batch, accumulate)()


# %% tags=["nbval-ignore-output"]
print(f"{predict.parameters(small).total:,} parameters; {batch} sequences of {small.context} tokens a step on {here.label}")

# %%
mine = guess("05.g1", {"step time, in pieces / whole": ..., "peak memory, in pieces / whole": ...}, "×")

# %% [markdown]
# A second guess, about the batch itself. The gradient of one sequence is the gradient that you want, plus noise. At how many sequences is the noise of their mean just as long as the signal: before training, when the text is new to the model, and after a few dozen steps?

# %%
mine_noise = guess("05.g2", {"noise scale before training": ..., "noise scale after training": ...}, "sequences")

# %% [markdown]
# ## Mechanism
# ### A sum, divided once
# The loss of a batch is a mean over its trained tokens, $L = \frac{1}{N}\sum_i \ell_i$. Differentiation is linear, so the gradient is the same sum over the tokens' gradients, divided by the same $N$. Cut the batch into micro-batches $m$ of $N_m$ tokens, and
#
# $$\nabla L = \frac{1}{N} \sum_m \sum_{i \in m} \nabla \ell_i = \sum_m \frac{N_m}{N}\, \nabla L_m \qquad N = \sum_m N_m$$
#
# with $L_m$ the micro-batch's own mean. PyTorch helps: `backward()` *adds* to `.grad`. All that is left to get right is the divisor, and that is where it goes wrong. The loop that everybody writes divides each mean by the number of micro-batches. That is right only where all $N_m$ are equal.
#
# In pre-training they are. In fine-tuning a loss is taken on the answers only, and answers have lengths. Two samples, of which 10 and 100 tokens are trained:

# %% tags=["nbval-check-output"]
counts = [10, 100]
rows = [["a token of the sample with", *(f"{n} trained" for n in counts)],
        ["weighs, in one batch of two", *(f"1/{sum(counts)}" for n in counts)],
        ["weighs, as a mean of two means", *(f"1/{n * len(counts)}" for n in counts)]]
print(columns_text(rows))

# %% [markdown]
# The mean of means lets a token of the short answer count ten times as much as a token of the long one. It is another objective, and it depends on how the samples happen to be dealt into micro-batches. For years the common trainers computed it, until October 2024 (huggingface/transformers#34191, meta-pytorch/torchtune#1875).
#
# Here with gradients: ten micro-batches of two sequences with random token counts, and windows of four, so that the last window has two. Each micro-batch's own gradient is kept and combined afterwards, in three ways. In fp64 a difference that is left is an error and not a rounding.

# %%
tiny = gpt("tiny", layers=2, hidden=64, heads=4, vocab=256, context=64)
IGNORED = -100  # the target of a token that is not trained on


def gradient(model, tokens, targets):
    """The gradient of the mean loss over the trained tokens, all parameters in one vector [N]."""
    model.zero_grad()
    logits = model(tokens)  # [B, T, V]
    F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def micro_batches(count: int, sequences: int):
    """Random tokens [B, T], and targets of which each sequence trains on a different number of the last."""
    for _ in range(count):
        tokens = torch.randint(tiny.vocab, (sequences, tiny.context))
        targets = tokens.roll(-1, dims=1)
        untrained = torch.randint(tiny.context - 1, (sequences, 1))
        yield tokens, targets.masked_fill(torch.arange(tiny.context) < untrained, IGNORED)


# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
data, size = list(micro_batches(10, sequences=2)), 4
table = [["window", "trained tokens", "", "N_m/N", "mean of means", "always 1/4"]]
for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
    torch.manual_seed(seed)
    model = models.Transformer(tiny).to(dtype)
    for begin in range(0, len(data), size):
        window = data[begin:begin + size]
        whole = gradient(model, *(torch.cat(part) for part in zip(*window)))  # all sequences in one batch
        pieces = torch.stack([gradient(model, *micro) for micro in window])  # [K, N]
        n = torch.tensor([(targets != IGNORED).sum() for _, targets in window], dtype=dtype)
        ways = [n / n.sum(), torch.full_like(n, 1 / len(window)), torch.full_like(n, 1 / size)]
        off = [((way @ pieces - whole).norm() / whole.norm()).item() for way in ways]
        assert off[0] < limit, off
        table.append([f"{begin} to {begin + len(window) - 1}", " + ".join(f"{x:.0f}" for x in n), str(dtype)[6:],
                      f"below {limit:g}", *(f"{x:.0%}" for x in off[1:])])
print(columns_text(table, left=3))

# %% [markdown]
# The weights $N_m/N$ give the big batch's gradient to the last digits of the format. The other two columns are what the loops in circulation give; all three are lengths of the error, relative to the gradient's. The last row of each format shows the third classic: a short last window whose two means are divided by four, which gives a step of half the length on top.
#
# $N$ has to be known *before* the first backward pass of the window, or the gradients have to be divided after the last. Across ranks the same sum runs over all of them; DDP then averages over ranks, so each rank multiplies by their number what it divides by the sum of all tokens.
#
# ### Where a window ends
# The other half is when to step. Ten micro-batches, windows of four; what each version has in `.grad` when it steps:

# %% tags=["nbval-check-output"]
def steps_of(ends) -> str:
    """The micro-batches behind each step, if `ends(i)` says whether a step follows micro-batch i."""
    held, shown = [], []
    for i in range(10):
        held.append(str(i))
        if ends(i):
            shown.append("{" + " ".join(held) + "}")
            held = []
    return " ".join(shown) + (f"   left in .grad: {' '.join(held)}" if held else "")


print("i % 4 == 0                   ", steps_of(lambda i: i % 4 == 0))
print("(i + 1) % 4 == 0             ", steps_of(lambda i: (i + 1) % 4 == 0))
print("(i + 1) % 4 == 0 or the last ", steps_of(lambda i: (i + 1) % 4 == 0 or i == 9))

# %% [markdown]
# The first is off by one: its first step has seen a single micro-batch, and so has a run's warm-up. The second never steps for the last two. Their gradients stay in `.grad`, and unless somebody clears them they are added to the next epoch's first window. Neither fails, and neither shows in a loss curve that one would look at twice.
#
# ### What it holds
# Between two micro-batches nothing of the first is left but its gradients. So the activations are those of one micro-batch, and the gradients live through *every* forward pass but the first, where without accumulation they are `None`. Two micro-batches cost as much memory as two hundred.

# %% tags=["nbval-check-output"]
ways = {"whole": (batch, 1), "in two": (batch // 2, 2), "in four": (batch // 4, 4), "one at a time": (1, batch)}
ledgers = {name: predict.memory(small, Job(b, small.context, accumulate=k)) for name, (b, k) in ways.items()}
table = [["", "micro-batch", "accumulate", "gradients at the loss, MiB", "peak, MiB", "at"]]
for name, (b, k) in ways.items():
    at_loss = ledgers[name].memory().at["loss"]
    table.append([name, str(b), str(k), f"{at_loss['gradients'] / MiB:.2f}", f"{ledgers[name].peak / MiB:.1f}",
                  ledgers[name].peak_at])
print(columns_text(table))

# %%
draw(ledgers["in two"].memory(), f"{batch} sequences in two: the gradients are there at every instant")

# %% [markdown]
# Read it as a trap. A micro-batch that just fits by itself may not fit once it is accumulated: four bytes a parameter come on top at the instant where the activations are highest. And smaller pieces save less and less: what is left are weights, moments, gradients and what `step()` makes for itself, and those know nothing of batches.
#
# ### What it takes
# A forward and backward pass over $b$ sequences takes $\alpha + \beta b$: a part for each pass (every kernel is launched, every weight is read, every gradient is added to) and a part for each sequence. The optimizer takes $u$, once. A step over $B$ sequences in pieces of $b$:
#
# $$t(b) = u + \frac{B}{b}(\alpha + \beta b) = u + \beta B + \alpha \frac{B}{b}$$
#
# Only $\alpha$ is multiplied. Where $\beta b$ is large against $\alpha$ accumulation is nearly free; where it is not, the pieces are too small for the machine. "Only slower" is not a property of accumulation but of small micro-batches.
#
# ### How much of a gradient is noise
# Let $G$ be the gradient over all data, and $\Sigma$ the covariance of one sample's gradient around it. The mean over $B$ samples keeps $G$ and divides the covariance by $B$, so its expected squared length is
#
# $$E\,|G_B|^2 = |G|^2 + \frac{\operatorname{tr}\Sigma}{B}$$
#
# Two unknowns, and accumulation shows $|G_B|^2$ at two batch sizes for nothing: a micro-batch's, and a window's. Solve. The quotient $\operatorname{tr}\Sigma / |G|^2$ is the *simple noise scale* of McCandlish and others (2018): the batch at which noise and signal are equally long. A case in which the answer is known shows that it works, and what does not:

# %% tags=["nbval-ignore-output"]
def solve(small_square: float, big_square: float, b: int, B: int) -> tuple[float, float]:
    """(tr Σ, |G|²) from the mean squared lengths of gradients over b and over B samples."""
    noise = (small_square - big_square) / (1 / b - 1 / B)
    return noise, (B * big_square - b * small_square) / (B - b)


torch.manual_seed(seed)
signal, spread, B = torch.full((1000,), 0.1), 0.4, 16  # |G|² = 10, tr Σ = 160: a noise scale of 16 samples
each = signal + spread * torch.randn(40, B, 1000)  # 40 windows of B samples
ones = each.square().sum(-1).mean(1)  # [40] mean squared length of a sample's gradient
bigs = each.mean(1).square().sum(-1)  # [40] squared length of the window's
noise, length = solve(ones.mean().item(), bigs.mean().item(), 1, B)
naive = (ones.mean() / bigs.mean()).item()
print(f"tr Σ {noise:.1f}, |G|² {length:.2f}, noise scale {noise / length:.1f} of 16; "
      f"the quotient of the lengths alone would say {naive:.1f}")

# %% [markdown]
# ## Measure
# ### Throughput and peak against the micro-batch
# The peaks first, in a fresh process each: three micro-batches by themselves, and the smallest accumulated to the whole step.

# %% tags=["nbval-ignore-output"]
def job_of(micro_batch: int, accumulate: int = 1) -> Job:
    return Job(micro_batch, small.context, accumulate=accumulate)


sizes = [2**i for i in range(batch.bit_length())]
peaks = {b: measure.memory(models.training, small, job_of(b), here.torch).peak for b in (1, batch // 4, batch)}
in_pieces = measure.memory(models.training, small, job_of(1, batch), here.torch).peak
predicted = {b: predict.memory(small, job_of(b)).peak for b in sizes}

# %% [markdown]
# Then the times: steps over one micro-batch of each size, and one step that accumulates four pieces of one sequence, in turn, so that a busy moment of the machine hits all of them. The line $u + \alpha + \beta b$ is fixed by the smallest and the largest size; the points between are its test. The four pieces take three passes more than one piece, which gives $\alpha + \beta$.

# %% tags=["nbval-ignore-output"]
ways = [*((b, 1) for b in sizes), (1, 4)]
taken = in_turn({f"{b} × {k}": functools.partial(real_step, b, k) for b, k in ways}, rounds=15)
times = {b: quartiles(taken[f"{b} × 1"]) for b in sizes}  # s: lower quartile, median, upper quartile
for b, (low, middle, high) in times.items():
    print(f"micro-batch {b:3d}: {seconds_text(middle)} (middle half {seconds_text(low)} to {seconds_text(high)})")
slope = (times[batch][1] - times[1][1]) / (batch - 1)  # β, s a sequence
line = {b: times[1][1] + slope * (b - 1) for b in sizes}
one_more = (quartiles(taken["1 × 4"])[1] - times[1][1]) / 3  # α + β, s
print(f"a pass costs {seconds_text(one_more - slope)} by itself and {seconds_text(slope)} a sequence, measured on {here.label}")

# %%
gain = times[1][1] * batch / times[batch][1]
MicroBatches(rate={b: b / times[b][1] for b in sizes}, spread={b: (b / times[b][2], b / times[b][0]) for b in sizes},
             rate_predicted={b: b / line[b] for b in sizes}, peak=peaks, peak_predicted=predicted, device=here.label,
             title=f"{batch} × the micro-batch: {gain:.1f} × the throughput, {predicted[batch] / predicted[1]:.1f} × the peak")

# %% [markdown]
# ### The price
# Now the step of the guess, in pieces against whole, in alternation.

# %% tags=["nbval-ignore-output"]
price = measure.alternate(lambda: real_step(1, batch), lambda: real_step(batch, 1), rounds=9,
                          names=("the step in pieces", "the step whole"))
print(price)

# %% [markdown]
# ### The noise, while it trains
# A training on text, four micro-batches a step. Its weights are kept at three steps, and the noise scale is measured at each of them: twelve windows of sixteen single sequences.

# %%
def batches(sequences: int, start: int):
    """Endless (tokens, targets), [sequences, T] each, on the device."""
    for micro in models.text.batches(sequences, small.context, start):
        yield tuple(part.to(here.torch) for part in micro)


singles = batches(1, seed + 1)


def measured_noise(training, windows: int = 12, size: int = 16):
    """The noise scale at the present weights, from windows of `size` sequences."""
    ones, bigs = [], []
    for _ in range(windows):
        total, squares = 0, []
        for micro in itertools.islice(singles, size):
            training.model.zero_grad()
            training.loss(*micro).backward()
            one = torch.cat([p.grad.flatten() for p in training.model.parameters()])  # [N]
            squares.append(one.square().sum().item())
            total = total + one
        ones.append(sum(squares) / size)
        bigs.append((total / size).square().sum().item())
    training.model.zero_grad()
    return noise_scale(ones, bigs, 1, size, device=here.label, seed=seed)


# %% tags=["nbval-ignore-output"]
training = models.training(small, job_of(4), here.torch, seed)
fours, steps_taken = batches(4, seed), 100
losses, kept = [], {}
with watch("4 × 4 sequences a step") as w:
    for step in range(steps_taken + 1):
        if step in (0, 40, steps_taken):
            kept[step] = {name: value.clone() for name, value in training.model.state_dict().items()}
        losses.append(0.0)
        for micro in itertools.islice(fours, 4):  # a window of equally many tokens each: a mean of means is right
            loss = training.loss(*micro) / 4
            loss.backward()
            losses[-1] += loss.item()
        training.optimizer.step()
        training.optimizer.zero_grad()
        w.step(16)

# %% tags=["nbval-ignore-output"]
found, table = {}, [["after steps", "loss", "noise scale, sequences", "middle 90 % of resampled windows"]]
for step, weights in kept.items():
    training.model.load_state_dict(weights)
    found[step] = measured_noise(training)
    noise = found[step]
    table.append([f"{step}", f"{losses[step]:.2f}", f"{noise.value:.3g}", f"{noise.low:.3g} to {noise.high:.3g}"])
print(f"{columns_text(table)}\n\nfrom {noise.windows} windows of 16 sequences, measured on {here.label}")

# %% [markdown]
# Once the loss has fallen the noise scale is several times what it was; whether it still differs between the last two rows is for their intervals to say. At first every sequence says the same thing (*these bytes are common, those are not*), and one is nearly as good as sixteen. Later the common part has been learnt, and what sequences still have in common is small against what sets them apart. A batch that was too large at the start is too small later, which is why long runs raise it on the way.
#
# ### What it means for the learning rate
# If the noise scale says what it claims, the best step from given weights can be predicted: with $B$ samples, both its length and its gain are $1/(1 + B_{noise}/B)$ of what the exact gradient would give. The weights that were kept in the middle, four batch sizes, a row of learning rates for plain SGD: take one step, look at the loss on text that the step has not seen, undo it.

# %%
pool = tuple(part.to(here.torch) for part in next(models.text.batches(256, small.context, seed + 2)))  # [256, T] each
unseen = tuple(part.to(here.torch) for part in next(models.text.batches(24, small.context, seed + 3)))


def change_of_loss(training, sequences: int, draws: int, rates) -> list[float]:
    """The mean change of the loss by one step of SGD at each learning rate, over `draws` batches from the pool."""
    parameters, changes = list(training.model.parameters()), [0.0] * len(rates)
    with torch.no_grad():
        before = training.loss(*unseen).item()
    for begin in range(0, 256, 256 // draws):  # each size begins at the same places: they share what they can
        training.model.zero_grad()
        training.loss(*(part[begin:begin + sequences] for part in pool)).backward()
        gradients = [p.grad for p in parameters]
        with torch.no_grad():
            for i, rate in enumerate(rates):
                torch._foreach_add_(parameters, gradients, alpha=-rate)
                changes[i] += (training.loss(*unseen).item() - before) / draws
                torch._foreach_add_(parameters, gradients, alpha=rate)
    training.model.zero_grad()
    return changes


# %% tags=["nbval-ignore-output"]
training.model.load_state_dict(kept[40])
coarse = [2.0**k for k in range(-13, 0)]  # where the best lies depends on the model: look once for a large batch
centre = min(zip(change_of_loss(training, 64, 4, coarse), coarse, strict=True))[1]
rates = [centre * 2.0**k for k in range(-5, 2)]
draws = {1: 16, 4: 8, 16: 8, 64: 4}
gains = Rates(rates, {b: change_of_loss(training, b, count, rates) for b, count in draws.items()}, here.label)
gains

# %% [markdown]
# ## Compare
# First the step in pieces.

# %% tags=["nbval-ignore-output"]
time_pieces = times[1][1] + (batch - 1) * one_more  # u + B(α + β)
row_time, row_peak = "step time, in pieces / whole", "peak memory, in pieces / whole"
computed = {row_time: time_pieces / times[batch][1], row_peak: ledgers["one at a time"].peak / ledgers["whole"].peak}
compare(mine, column("computed", computed, "×", source="α + β from timed steps; the ledger"),
        column("measured", {row_time: price.value, row_peak: in_pieces / peaks[batch]}, "×", here.label))

# %% [markdown]
# The memory is the ledger's, to a few scalars. The time is that of four passes, carried over to all; what it leaves out is whatever does not add up: caches that a small pass stays in, threads that a small pass cannot use, a neighbour on the machine. On a GPU $\alpha$ is mostly launches, and the price of small pieces is higher than here until a micro-batch fills the card.
#
# Then the noise. There is nothing to compute it from, so the guess stands beside the measurement alone.

# %% tags=["nbval-ignore-output"]
compare(mine_noise, column("measured", {"noise scale before training": found[0].value,
                                        "noise scale after training": found[steps_taken].value}, "sequences", here.label))

# %% [markdown]
# And the claim about learning rates, with the noise scale of the same weights: how the best rate grows with the batch, and what a step gains at its best rate.

# %% tags=["nbval-ignore-output"]
scale = found[40].value
pairs = [(4, 1), (16, 4), (64, 16)]
claimed = {b: progress(b, scale) for b in draws}  # of the exact gradient's, rate and gain alike
rows = {f"{what}, batch {b} / batch {a}": (claimed[b] / claimed[a], gains.best(b)[i] / gains.best(a)[i])
        for i, what in enumerate(("best learning rate", "gain of a step")) for b, a in pairs}
compare(column("computed", {name: row[0] for name, row in rows.items()}, "×", source=f"1/(1 + {scale:.3g}/B)"),
        column("measured", {name: row[1] for name, row in rows.items()}, "×", here.label))

# %% [markdown]
# "Twice the batch, twice the learning rate" holds for SGD while the batch is small against the noise scale. Near it the rate grows by less than the batch, and far above it not at all: look down the first three rows, each of them for four times the batch. The measured optimum is read off a coarse row of rates and a few batches, so mind the direction and not the second digit. Where the measured factors stay above the computed ones, the noise that hampers a step is larger than the simple scale says: it is weighed by the curvature of the directions in which it lies, and the simple scale takes all directions as equally curved. It gives an order of magnitude, and not a setting.
#
# For AdamW the rule is another one: where noise dominates, it divides by the noise's own size, and the learning rate goes with the *square root* of the batch (Malladi and others, 2022).

# %% [markdown]
# ## At full size
# Four published runs of llm.c, with what their scripts state. Tokens a step are the recipe's. The micro-batch is the card's, and the implementation's.

# %%
runs = [row for row in published("throughput") if row["case"] == "B10"]
table = [["published", "GPUs", "tokens a step", "micro-batch", "seconds a step"]]
for row in runs:
    tokens = int(row["global_batch"]) * int(row["seq"])
    rate = float(row["tokens_per_second_per_gpu"]) * int(row["gpus"])
    table.append([row["model"], f"{row['gpus']} × {row['gpu']}", f"{tokens:,}", row["micro_batch"], f"{tokens / rate:.2f}"])
print(columns_text(table, left=2))
print("\n" + "\n".join(row["source"] for row in runs))

# %% [markdown]
# Now the question's own run on one card: 512 sequences a step, in bf16 autocast with fused AdamW, by micro-batch. The verdict is the ledger's with accumulation on. The second table has the time: an interval computed for one card, beside what the eight A100s took, as published.

# %% tags=["nbval-check-output"]
cards = ["t4", "l4", "rtx-4090", "a100-80"]
table = [["micro-batch × accumulate", "GiB allocated", *cards]]
for recompute, micro in itertools.product(("none", "full"), (4, 8, 16, 32, 64)):
    way = recipe.but(micro_batch=micro, accumulate=512 // micro, recompute=recompute)
    at_full = predict.memory(shape("gpt2"), way)
    table.append([f"{micro} × {512 // micro}, recompute {recompute}", f"{at_full.peak / 2**30:.1f}",
                  *(at_full.fits(card) for card in cards)])
print(columns_text(table))

# %% tags=["nbval-check-output"]
tokens, total_steps = 512 * 1024, 18_865  # of the published script
table = [["", "kind", "s a step", "hours", "GPU-hours"]]
for card, recompute in (("rtx-4090", "full"), ("a100-80", "none")):
    ends = step_time(shape("gpt2"), tokens, 1024, ceiling(gpu(card)), recompute).seconds
    hours = [end * total_steps / 3600 for end in ends]
    table.append([f"1 × {gpu(card).title}", "computed", "{:.1f} … {:.1f}".format(*ends), *["{:.0f} … {:.0f}".format(*hours)] * 2])
row = runs[0]
second = tokens / (float(row["tokens_per_second_per_gpu"]) * int(row["gpus"]))
hours = second * total_steps / 3600
table.append([f"{row['gpus']} × {gpu(row['gpu']).title}", "published", f"{second:.1f}", f"{hours:.1f}", f"{8 * hours:.0f}"])
print(columns_text(table, left=2))

# %% [markdown]
# So the recipe runs on one card, exactly, at the price of its missing cards and not of accumulation. Whether to keep the recipe's batch is another question. Below is what GPT-3's authors used, who say that the gradient noise scale guided them: larger models, trained to a lower loss, with larger batches and smaller learning rates.

# %%
rows = published("batch_sizes")
print(columns_text([["published", "tokens a step", "learning rate"],
                    *([row["model"], row["tokens_per_step"], row["learning_rate"]] for row in rows)]))
print("\n" + rows[0]["source"])

# %% [markdown]
# What a batch buys, if the noise scale is one million tokens: steps to the same loss, and tokens to the same loss, as multiples of the least of each.

# %% tags=["nbval-check-output"]
table = [["tokens a step", "steps", "tokens", "share of one step's possible gain"]]
for tokens in (65_536, 262_144, 524_288, 1_048_576, 4_194_304, 16_777_216):
    table.append([f"{tokens:,}", f"{steps(tokens, 1_000_000):.2f} ×", f"{samples(tokens, 1_000_000):.2f} ×",
                  f"{progress(tokens, 1_000_000):.0%}"])
print(columns_text(table))

# %% [markdown]
# Far below the noise scale, twice the batch halves the steps for the same tokens: twice the GPUs, half the time. Far above it, twice the batch costs twice the tokens for the same steps. At the noise scale both are at twice their least. On *one* card there is nothing to halve: there accumulation buys no speed, it buys the recipe.
#
# Two cautions. The noise scale stands for the critical batch under strong assumptions. Work that measures the critical batch directly finds it near nothing at the start, rising fast, then flat (Merrill and others, 2025), and growing with the amount of data rather than with the model (Zhang and others, 2024). And "large batches generalise worse" is a statement about many epochs over small data sets with the learning rate left alone; with one pass over the data, what is lost above the critical batch is tokens.

# %% [markdown]
# ## Exercises
# ### 05.1 Ten and a hundred
# A window of two samples, with 10 and 100 trained tokens. What is the weight of *one token's* gradient in the step? For the last part there are two ranks with one sample each: each rank divides its sum by 110, and DDP averages the gradients of the ranks.

# %% tags=["stub"] exercise="05.1"
answer_1 = {
    "mean of means, short sample": ...,
    "mean of means, long sample": ...,
    "one batch of two, either sample": ...,
    "two ranks, each divides by 110": ...,
}

# %% tags=["solution"] exercise="05.1"
answer_1 = {
    "mean of means, short sample": 1 / 10 / 2,
    "mean of means, long sample": 1 / 100 / 2,
    "one batch of two, either sample": 1 / (10 + 100),
    "two ranks, each divides by 110": 1 / 110 / 2,  # DDP's mean divides once more: multiply by the ranks
}

# %% tags=["check"] exercise="05.1"
check("05.1", answer_1)

# %% [markdown]
# ### 05.2 Token-weighted accumulation
# Write it. `window` is a list of `(tokens, targets)`, int64 tensors [b, T]; a target of −100 is not trained on, and a micro-batch may have no trained token at all. Leave in `.grad` the gradient of the mean loss over all trained tokens of the window, and return that mean as a Python float. `model(tokens)` gives logits [b, T, V]. The check counts backward passes and bytes as well.

# %% tags=["stub"] exercise="05.2"
def accumulate_window(model, window) -> float:
    """Gradients of the window's mean loss, added to .grad; the mean itself is returned."""
    ...


# %% tags=["solution"] exercise="05.2"
def accumulate_window(model, window) -> float:
    """Gradients of the window's mean loss, added to .grad; the mean itself is returned."""
    trained = sum((targets != -100).sum().item() for _, targets in window)
    total = 0.0
    for tokens, targets in window:
        logits = model(tokens).flatten(0, 1)  # [b·T, V]
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum") / trained
        loss.backward()
        total += loss.item()
    return total


# %% tags=["check"] exercise="05.2"
check("05.2", accumulate_window)

# %% [markdown]
# ### 05.3 A short last window
# This loop has run for months. Mend it: windows of `accumulate` micro-batches, the last one as short as it comes, each window's step on the mean over its trained tokens. `batches` is a stream without a length, and too long to be read ahead. Return the number of steps.
#
# ```python
# def train(model, optimizer, batches, accumulate):
#     steps = 0
#     for i, (tokens, targets) in enumerate(batches):
#         logits = model(tokens).flatten(0, 1)
#         loss = F.cross_entropy(logits, targets.flatten(), ignore_index=-100)
#         (loss / accumulate).backward()
#         if i % accumulate == 0:
#             optimizer.step()
#             optimizer.zero_grad()
#             steps += 1
#     return steps
# ```

# %% tags=["stub"] exercise="05.3"
def train(model, optimizer, batches, accumulate: int) -> int:
    """One epoch over the stream `batches`; returns the number of optimizer steps."""
    ...


# %% tags=["solution"] exercise="05.3"
def train(model, optimizer, batches, accumulate: int) -> int:
    """One epoch over the stream `batches`; returns the number of optimizer steps."""
    stream, done = iter(batches), 0
    while window := list(itertools.islice(stream, accumulate)):  # tokens are small: one window may be held
        trained = sum((targets != -100).sum().item() for _, targets in window)
        for tokens, targets in window:
            logits = model(tokens).flatten(0, 1)
            (F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum") / trained).backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    return done


# %% tags=["check"] exercise="05.3"
check("05.3", train)

# %% [markdown]
# ### 05.4 The price, measured
# Write the measurement of a price: how many times as long a step over `batch` sequences takes in pieces of `micro_batch` as whole. `step(micro_batch, accumulate)` takes one step; `clock()` gives seconds. Take each of the two once for nothing, then `rounds` times under the clock, and be robust against what machines do: the check plays one that gets slower as it warms up, and that stumbles now and then.
#
# Then measure here: `price_of(real_step, batch, 1, 9, time.perf_counter)` with the `real_step` of this lesson.

# %% tags=["stub"] exercise="05.4"
def price_of(step, batch: int, micro_batch: int, rounds: int, clock) -> float:
    """Time of a step over `batch` sequences in pieces of `micro_batch`, divided by its time whole."""
    ...


# %% tags=["solution"] exercise="05.4"
def price_of(step, batch: int, micro_batch: int, rounds: int, clock) -> float:
    """Time of a step over `batch` sequences in pieces of `micro_batch`, divided by its time whole."""
    def seconds(micro: int) -> float:
        begin = clock()
        step(micro, batch // micro)
        return clock() - begin

    seconds(micro_batch), seconds(batch)
    ratios = []
    for _ in range(rounds):  # in turn: what slows one down slows its neighbour too
        ratios.append(seconds(micro_batch) / seconds(batch))
    return sorted(ratios)[rounds // 2]


with measure.quiet():
    print(f"measured on {here.label}: {price_of(real_step, batch, 1, 9, time.perf_counter):.2f} × in pieces of one")

# %% tags=["check"] exercise="05.4"
check("05.4", price_of)

# %% [markdown]
# ### 05.5 A schedule under a budget
# Write the planner: the largest micro-batch with which every one of `ranks` GPUs stays within `limit` bytes, and the accumulation that makes the global batch exactly. Use `predict.memory(shape, job).peak`; `job.but(micro_batch=…, accumulate=…)` changes a job. Fewer, larger pieces are better. Some schedule always fits.

# %% tags=["stub"] exercise="05.5"
def schedule(shape, job, global_batch: int, ranks: int, limit: int) -> tuple[int, int]:
    """(micro_batch, accumulate) for a global batch in sequences, on `ranks` GPUs of `limit` bytes each."""
    ...


# %% tags=["solution"] exercise="05.5"
def schedule(shape, job, global_batch: int, ranks: int, limit: int) -> tuple[int, int]:
    """(micro_batch, accumulate) for a global batch in sequences, on `ranks` GPUs of `limit` bytes each."""
    share = global_batch // ranks
    for micro in range(share, 0, -1):
        if share % micro == 0:
            way = job.but(micro_batch=micro, accumulate=share // micro)  # with accumulation gradients stay alive
            if predict.memory(shape, way).peak <= limit:
                return micro, share // micro


# %% tags=["check"] exercise="05.5"
check("05.5", schedule)

# %% [markdown]
# ### 05.6 Four times the batch
# The published 124M run takes 18,865 steps of 524,288 tokens, the first 700 of them as warm-up, with a learning rate of 6 · 10⁻⁴ and AdamW. You get more GPUs and make the batch four times as large, for the same training: the same tokens in all, the same tokens in the warm-up. What becomes of the numbers? Round nothing.

# %% tags=["stub"] exercise="05.6"
answer_6 = {
    "steps": ...,
    "warm-up steps": ...,
    "tokens of the warm-up": ...,
    "learning rate by the square-root rule": ...,
}

# %% tags=["solution"] exercise="05.6"
answer_6 = {
    "steps": 18_865 / 4,
    "warm-up steps": 700 / 4,
    "tokens of the warm-up": 700 * 524_288,
    "learning rate by the square-root rule": 6e-4 * 4**0.5,
}

# %% tags=["check"] exercise="05.6"
check("05.6", answer_6)

# %% [markdown]
# ### 05.7 Four published set-ups
# From the table of llm.c's runs in *At full size* (sequences of 1,024 tokens): how many micro-batches does each accumulate in a step? How many minutes does the 124M run take for its 18,865 steps at 0.3 s? And how many hours the 1,558M run (`gpt2-xl`) for its 32,000 steps at 2.80 s?

# %% tags=["stub"] exercise="05.7"
answer_7 = {"gpt2": ..., "gpt2-medium": ..., "gpt2-large": ..., "gpt2-xl": ..., "124M, minutes": ..., "1,558M, hours": ...}

# %% tags=["solution"] exercise="05.7"
answer_7 = {
    "gpt2": 524_288 / (64 * 1024 * 8),
    "gpt2-medium": 524_288 / (64 * 1024 * 8),
    "gpt2-large": 524_288 / (32 * 1024 * 8),
    "gpt2-xl": 1_048_576 / (16 * 1024 * 8),
    "124M, minutes": 18_865 * 0.3 / 60,
    "1,558M, hours": 32_000 * 2.80 / 3600,
}

# %% tags=["check"] exercise="05.7"
check("05.7", answer_7)

# %% [markdown]
# ### 05.8 Twice the GPUs
# A run takes batches of 0.5 million tokens on 64 GPUs; its noise scale, measured now, is 1.5 million. You are offered 128 GPUs, with batches of 1 million tokens that take as long a step. To the same loss: what are the new run's steps, and its tokens, as multiples of the old run's? And somebody shows you a noise scale of 3 million tokens whose interval goes from 0.8 million to infinity. What does it say?
#
# - `a`: that the gradient is pure noise, and training has converged
# - `b`: that the windows are too few or too short to tell the signal from nothing: measure more before deciding
# - `c`: that the batch should be as large as possible
# - `d`: that the estimate is biased upwards, so the lower end is the right value

# %% tags=["stub"] exercise="05.8"
answer_8 = {"steps": ..., "tokens": ..., "interval to infinity": ...}

# %% tags=["solution"] exercise="05.8"
answer_8 = {
    "steps": steps(1.0, 1.5) / steps(0.5, 1.5),
    "tokens": samples(1.0, 1.5) / samples(0.5, 1.5),
    "interval to infinity": "b",
}

# %% tags=["check"] exercise="05.8"
check("05.8", answer_8)

# %% [markdown]
# ## When it breaks
# The trainer has just been mended: losses are summed, and divided by the window's tokens at the end. The curves with and without accumulation agree to the last digit. The next day runs that had fitted for months are out of memory, and the more they accumulate the sooner. That happened to torchtune in October 2024 (meta-pytorch/torchtune#1875, mended in #1917), within nine days.
#
# Two ways to do the same arithmetic, counted on the small model. One adds up the losses and goes backward once. The other goes backward at each micro-batch and divides the *gradients* at the end.

# %% tags=["nbval-check-output"]
def once(model, window) -> None:
    total = sum(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in window)
    (total / sum(y.numel() for _, y in window)).backward()


def each_time(model, window) -> None:
    for x, y in window:
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").backward()
    torch._foreach_div_([p.grad for p in model.parameters()], sum(y.numel() for _, y in window))


torch.manual_seed(seed)
model = models.Transformer(tiny).double()
gradients = {}
for count, way in itertools.product((2, 8), (once, each_time)):
    model.zero_grad()
    window = list(itertools.islice(models.text.batches(2, tiny.context, seed), count))
    with measure.LiveStorages() as live:
        live.own(model, *itertools.chain(*window))
        way(model, window)
    gradients[way, count] = torch.cat([p.grad.flatten() for p in model.parameters()])
    print(f"{count} micro-batches, {way.__name__:9s}: peak {live.peak / MiB:5.1f} MiB")
assert all(torch.allclose(gradients[once, k], gradients[each_time, k], rtol=1e-10, atol=1e-15) for k in (2, 8))

# %% [markdown]
# Same gradients, and the first has the memory of the big batch: the sum of the losses holds the graph of every micro-batch until the one backward pass. Accumulation saves memory because `backward()` frees, not because batches are small. When a change to a loss makes memory grow with the accumulation, look for what keeps more than one graph.

# %% [markdown]
# ## Explain it
# Without notes: **what must be divided by what, and when, so that accumulated gradients equal the big batch's; what does accumulation hold, what does it cost, and when is the larger batch not worth it?** Then:
#
# 1. Two ranks, windows of four, token counts all different. Which numbers must be known to whom before the first backward pass?
# 2. A micro-batch of 12 runs alone and is out of memory with accumulation 2. Which line of the ledger came in, and at which instant?
# 3. Accumulating 64 × 1 takes twice as long as 1 × 64 on one card and 1.05 times on another. Which part of $t(b)$ differs?
# 4. Gradients are accumulated in bf16 over 512 micro-batches. What happens to the late ones?
# 5. The noise scale is ten times your batch. You are offered ten times the GPUs. What will you get for them?

# %% [markdown]
# ## Take away
# > **Sum, then divide once by the window's trained tokens.** A mean of means is another objective wherever counts differ, and windows end where the data ends.
#
# > **Accumulation trades launches for activations.** One more list of gradients is alive, two passes cost as much memory as two hundred, and only the part of the time that a pass costs by itself is multiplied.
#
# > **A batch is large or small against the noise scale.** Below it, more samples a step mean fewer steps; above it, they are spent.
#
# Reading: *An Empirical Model of Large-Batch Training* (McCandlish et al., 2018), sections 2 and appendix A; *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms* (Malladi et al., 2022) for the square root; *How Does Critical Batch Size Scale in Pre-training?* (Zhang et al., 2024) and *Critical Batch Size Revisited* (Merrill et al., 2025) for what has been found since. Next: 06, where the batch is made of people waiting.
