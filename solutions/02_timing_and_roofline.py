# %% [markdown]
# # 02 · Timing and roofline
#
# How long an operation takes, how long it must take at least, and how much of a machine a training step uses.
#
# **Minutes** 75 · **Hardware** cpu, gpu · **Needs** 00, 01
#
# After this lesson you can
#
# - time a call so that the number means what it says: waited for, warm, on fresh inputs, with its spread;
# - name the floor that holds an operation up (compute, memory or overhead) before you measure it;
# - count the FLOPs and the bytes of a training step;
# - compute MFU and HFU from a log line, and say under which convention;
# - find what is wrong with a figure that is too good.

# %%
import itertools
import statistics
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from gpucourse import check, compare, guess, hint, measure, models, predict, question, solution, watch
from gpucourse.catalog import Job, gpt, gpu, pick, published, seconds_text, shape
from gpucourse.dryrun import work
from gpucourse.evidence import column, columns_text
from gpucourse.exercises import progress
from gpucourse.live.calibration import calibration
from gpucourse.live.roofline import roofline
from gpucourse.measure.events import event_seconds
from gpucourse.measure.turns import in_turn
from gpucourse.predict.compute import CONVENTIONS, flops_per_token, hardware_flops_per_token, ridge
from gpucourse.predict.utilization import mfu

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of what is drawn at random

# %% [markdown]
# ## The question
# The model fits: the ledger said so, and it does. Now it trains, the log prints a number of tokens a second, and nobody in the room can say whether that is good. Somebody times the largest layer by itself. It is done in almost no time, so the GPU cannot be what the run is waiting for.
#
# Lesson 01 cannot help, and there is a difference to it that matters. A memory estimate that is wrong ends in an error. A time that is wrong ends in a table, and looks like all other times. This is such a table, from a benchmark that many people had read before one of them added a line to it:

# %% tags=["nbval-check-output"]
table = [["published", "ms before", "ms after", "ratio"]]
for row in published("synchronization"):
    ratio = float(row["ms_with"]) / float(row["ms_without"])
    table.append([row["operation"], row["ms_without"], row["ms_with"], f"{ratio:.1f}"])
print(columns_text(table))
print(f"{gpu(row['device']).title}; {row['source']}")

# %% [markdown]
# Before the line was added, everything took the same time, from a matrix product to a comparison with zero. That was the only sign. How would you have known from one number alone? By a bound: an operation has work to do and bytes to move, the machine has a rate for each, and no honest clock shows less than the slower of the two needs. That bound is what this lesson builds, for one operation and for a whole step.

# %% [markdown]
# ## Predict
# Six operations out of a transformer, in sizes for this machine. Each writes into memory that exists already (`out=`), so that taking memory from the system is not part of what is timed.

# %%
torch.manual_seed(seed)
here = measure.device()
low = ("bf16", torch.bfloat16) if here.bf16 else ("fp16", torch.float16)
name, dtype = low if here.kind == "cuda" else ("fp32", torch.float32)
rows, width, heads, seq = (8192, 16384, 64, 4096) if here.kind == "cuda" else (128, 4096, 4, 1024)


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=dtype, device=here.torch)


# %%
w, x, y = (drawn(width, width) for _ in range(3))  # [W, W] each
many, one, few = drawn(rows, width), drawn(width), drawn(128)  # [R, W], [W], [128]
q, k = drawn(heads, seq, 128), drawn(heads, 128, seq)  # [A, T, 128], [A, 128, T]
many_out, one_out, xy, few_out = many.clone(), one.clone(), x.clone(), few.clone()
scores = drawn(heads, seq, seq)  # [A, T, T]
calls = {
    "linear, many rows": lambda: torch.mm(many, w, out=many_out),
    "linear, one row": lambda: torch.mv(y, one, out=one_out),
    "residual add": lambda: torch.add(x, y, out=xy),
    "row sums": lambda: torch.sum(x, -1, out=one_out),
    "attention scores": lambda: torch.bmm(q, k, out=scores),
    "add, one head": lambda: torch.add(few, few, out=few_out),
}
print(f"{name}; weights [{width:,}, {width:,}], {rows:,} rows; scores [{heads}, {seq:,}, {seq:,}] of heads 128 wide")

# %% [markdown]
# Write down how many ms you expect of three of them. Lesson 00 measured both rates that you need.

# %%
mine = guess("02.g1", {"linear, many rows": ..., "linear, one row": ..., "residual add": ...}, "ms")

# %% [markdown]
# And for a small training run, the share of the time in which the matrix products alone would be done, if they ran at the best rate that this machine reaches. That share is the MFU, with the measured rate in place of the vendor's.

# %%
small = pick(profile,
             smoke=gpt("small", layers=4, hidden=256, heads=4, vocab=256, context=256),
             lab=gpt("small", layers=6, hidden=384, heads=6, vocab=256, context=256),
             full=gpt("small", layers=24, hidden=1024, heads=16, vocab=256, context=1024))
job = Job(micro_batch=pick(profile, smoke=4, lab=4, full=16), seq=small.context,
          precision=f"{name}-autocast" if here.kind == "cuda" else "fp32")
print(f"{predict.parameters(small).total:,} parameters; {job}")

# %%
mine_share = guess("02.g2", {"MFU against the measured ceiling": ...}, "%")

# %% [markdown]
# ## Mechanism
# ### A call that returns before its work is done
# A GPU takes work from a queue. `a @ b` puts a product into it and returns; Python goes on to the next line while nothing has been computed yet. A queue that another thread works through does the same, on any machine:

# %%
class Stream:
    """A queue of calls. launch() returns at once; synchronize() returns when all that was launched is done."""

    def __init__(self):
        self.worker, self.queued = ThreadPoolExecutor(1), []

    def launch(self, call):
        self.queued.append(self.worker.submit(call))
        return self.queued[-1]

    def synchronize(self):
        while self.queued:
            self.queued.pop().result()


# %% tags=["nbval-ignore-output"]
square = torch.randn(1024, 1024)  # in host memory, also where there is a GPU
stream, product = Stream(), lambda: square @ square
stream.launch(product)  # for nothing: the thread starts here
stream.synchronize()
begin = time.perf_counter()
stream.launch(product)
launched = time.perf_counter() - begin  # the clock that does not wait
stream.synchronize()
waited = time.perf_counter() - begin  # the clock that does
before, _, after = stream.launch(time.perf_counter), stream.launch(product), stream.launch(time.perf_counter)
stream.synchronize()
events = after.result() - before.result()  # two looks at the clock, put into the queue

table = [["simulated: a thread plays the GPU", "time", "TFLOP/s that this would be"]]
for what, seconds in (("around the launch", launched), ("launch and synchronize", waited), ("two events", events)):
    table.append([what, seconds_text(seconds), f"{2 * 1024**3 / seconds / 1e12:.3g}"])
print(columns_text(table))

# %% [markdown]
# The first line measures the queue. The last is what `torch.cuda.Event` does: it puts *looks at the clock* into the queue, before and after the work, so that the time is the device's own and the launch is not in it. The work between the two need not be waited for by the host until the end.
#
# Other lines wait without saying so: `.item()`, `.cpu()`, `print(loss)`, `if loss > 3`. They then appear to take the time of everything that was queued before them. A profile in which `.cpu()` is slow is usually a profile of the forward pass.

# %% tags=["nbval-ignore-output"]
if here.kind == "cuda":
    product = calls["linear, many rows"]
    product()  # for nothing
    begin = time.perf_counter()
    product()
    print(f"around the launch: {seconds_text(time.perf_counter() - begin)}")
    print(f"by two events: {seconds_text(event_seconds(product))}")
    print(measure.timed(product, name="launch and synchronize"))
else:
    print("needs 1 GPU (this machine has 0): on a CPU a call returns when its work is done, so a plain clock is right")

# %% [markdown]
# ### The first call, the usual call, the odd one
# The first call pays for what happens once: memory is taken, a kernel is chosen or compiled, clocks rise, a communicator is built. Later calls differ because the machine does other things as well. Here is the first call of a size that has not run yet, beside its later ones, and then one operation again and again:

# %% tags=["nbval-ignore-output"]
print(measure.timed(torch.matmul, drawn(rows, 777), drawn(777, 333), name="a new size"))
wide, tall = drawn(rows, 1000), drawn(1000, 512)
timing = in_turn({"": lambda: wide @ tall}, rounds=60)[""]
low, middle, high = statistics.quantiles(timing, n=4)
figures = {"least": min(timing), "median": middle, "mean": statistics.fmean(timing), "most": max(timing)}
for what, value in figures.items():
    print(f"{what:8s}{seconds_text(value):>9s}")
print(f"middle half of 60 calls: {seconds_text(low)} to {seconds_text(high)}")

# %% [markdown]
# Which one is *the* time depends on the question. What will a training pay? The median, or over a whole epoch the mean. What can this machine do? The least, because nothing makes a call faster than it can be, and much makes it slower. A ceiling is therefore a best of several.
#
# And is one version faster than another? For that neither will do: two series taken one after the other differ by whatever the machine did in between. Take the two in turn, and look at the ratio, round by round. How large must a ratio be before it means something? Compare a thing with itself and see:

# %% tags=["nbval-ignore-output"]
itself = measure.alternate(lambda: wide @ tall, lambda: wide @ tall, rounds=21, names=("a product", "the same product"))
print(itself)

# %% [markdown]
# A speed-up inside that interval has not been shown.
#
# ### What is still in the cache
# A benchmark that calls one operation on one input a thousand times finds the input in the cache from the second call on. Training does not: by the time a layer's weights are needed again, all other layers have passed through. The same products of a small matrix and a vector, once with the same matrix and once with the next of many:

# %% tags=["nbval-ignore-output"]
side = 2048 if here.kind == "cuda" else 256
stack, vector = drawn(256, side, side), drawn(side)  # [256, S, S], [S]
turn = itertools.cycle(stack)
same, result = stack[0], torch.empty_like(vector)


def sixty_four(matrices):
    for matrix in matrices:
        torch.mv(matrix, vector, out=result)


cached = in_turn({"the same": lambda: sixty_four(itertools.repeat(same, 64)),
                  "the next": lambda: sixty_four(itertools.islice(turn, 64))}, rounds=15)
for what, seconds in cached.items():
    print(f"{what} matrix of {same.nbytes / 2**20:g} MiB: {64 * same.nbytes / min(seconds) / 1e9:.1f} GB/s at best")

# %% [markdown]
# ### Three floors
# An operation computes $F$ FLOPs and moves $B$ bytes at least: each input read once, each result written once. With $\pi$ FLOP/s and $\beta$ bytes/s as ceilings, and $o$ seconds to launch anything at all, it takes
#
# $$t \;\ge\; \max\left(\frac{F}{\pi},\; \frac{B}{\beta},\; o\right)$$
#
# Divide $F$ by this and the first two terms become the **roofline**: FLOP/s reach at most $\min(\pi,\; I\beta)$, where $I = F/B$ is the **arithmetic intensity**. Both terms are equal at the **ridge** $I = \pi/\beta$. Left of it memory is what holds the operation up, right of it compute. The third floor is not in the classical picture, and for small operations it is the highest.
#
# For a linear layer with $m$ rows, $F = 2mkn$ and $B = s\,(mk + kn + mn)$ at $s$ bytes an element. While $m$ is small the weights, $kn$, are nearly all of $B$, so $I \approx 2m/s$: **the intensity of a linear layer is its number of rows**, in 16 bits, and half of it in 32. Rows are tokens. That is why a large batch is efficient, and why generating one token at a time is not.

# %% tags=["nbval-check-output"]
def linear(m: int, k: int, n: int, s: int) -> tuple[int, int]:
    """FLOPs and bytes of [m, k] × [k, n], s bytes an element."""
    return 2 * m * k * n, s * (m * k + k * n + m * n)


ridges = {card: ridge(gpu(card).peak("fp16"), gpu(card).bandwidth) for card in ("t4", "a100-80", "h100-sxm", "b200")}
table = [["rows of 4096 → 4096, 16 bit", "FLOPs a byte", *ridges]]
for m in (1, 16, 256, 512, 4096):
    flops, moved = linear(m, 4096, 4096, 2)
    sides = ["compute" if flops / moved > turn else "memory" for turn in ridges.values()]
    table.append([str(m), f"{flops / moved:.1f}", *sides])
table.append(["ridge, by the data sheets", "", *(f"{turn:.0f}" for turn in ridges.values())])
print(columns_text(table))

# %% [markdown]
# A ridge of hundreds of FLOPs a byte means: an operation that does less than that with a byte leaves the card's arithmetic idle, however good its kernel. And the ridge is the card's, not the operation's. The third row is held up by compute on one card and by memory on its successor, without a line of it changing.
#
# ### The FLOPs of a step
# Each weight of a linear layer meets each token in one multiply-add: 2 FLOPs forward. Backward makes two products of the same size, one for the gradient of the input and one for the gradient of the weight: 4 more. So 6 a weight and token. Attention has no weights in its two products, scores and mixture: $2 \cdot 2\,h\,s$ forward a token and layer, and twice that backward, $12\,L\,h\,s$ in all. Held against what PyTorch dispatches, operation by operation, on fake tensors:

# %% tags=["nbval-check-output"]
tiny = gpt("tiny", layers=4, hidden=256, heads=4, vocab=256, context=256)
batch = Job(micro_batch=4, seq=256)
done = work.step(tiny, batch)  # each operation of one step: name, FLOPs, bytes
of_linears = sum(op.flops for op in done if "attention" not in op.name)
attention = [op for op in done if "attention" in op.name]
back = sum(op.flops for op in attention if "backward" in op.name)
forth = sum(op.flops for op in attention) - back

L, h, s, V = tiny.layers, tiny.hidden, batch.seq, tiny.vocab
multiplied = L * 12 * h * h + V * h  # q, k, v, out: 4 h²; the MLP: 8 h²; the head, which is the token table
assert of_linears == 6 * multiplied * batch.tokens
assert forth == 4 * L * h * s * batch.tokens
print(f"{len(done)} operations; linears {of_linears / 1e9:.2f} GFLOP, 6 a weight and token, to the last one")
print(f"attention: backward is {back / forth} × forward, not 2 ×")

# %% [markdown]
# The linears agree to the last FLOP. Attention's backward does more than the model asks for: the kernel threw the scores away in forward and makes them once more. And a layer whose input needs no gradient, or whose weights are frozen, skips a product. **6 is what an ordinary layer costs, not a law.**
#
# ### MFU and HFU
# **MFU**, model FLOPs utilization: the FLOPs that the *model* asks for, in one second, as a share of the peak. **HFU**, hardware FLOPs utilization: the FLOPs that the *hardware* did. Whoever recomputes activations raises the second and not the first. Nobody trains for HFU; it tells you how busy the units were.
#
# With full recomputation the forward pass runs twice, and 6 becomes 8. That is the usual formula. What does PyTorch really run?

# %% tags=["nbval-check-output"]
again = work.step(tiny, batch.but(recompute="full"))
factor = sum(op.flops for op in again if "attention" not in op.name) / of_linears
formula = hardware_flops_per_token(tiny, s, recompute="full").linear / flops_per_token(tiny, s).linear
skipped = L * (4 * h * h) + V * h  # the MLP's second matrix, and the head
assert abs(factor - (8 - 2 * skipped / multiplied) / 6) < 1e-12
print(f"linears of a step with full recomputation: {factor:.3f} × by count, {formula:.3f} × by the formula")

# %% [markdown]
# Fewer than the formula says, and the difference is known to the last FLOP: the head lies outside of what is recomputed, and of each block the last product is skipped, because backward needs its input and not its result. An HFU by formula is an upper bound.
#
# What counts as asked for is a convention, and three are in use. They differ by whether the embedding table counts, and whether the half of attention that the causal mask throws away does:

# %% tags=["nbval-check-output"]
llama = shape("llama-3.1-8b")
lengths = (2048, 8192, 32768)
table = [["Llama 3.1 8B, GFLOP a token at", *(f"{length:,} tokens" for length in lengths)]]
for convention in CONVENTIONS:
    counted = [flops_per_token(llama, length, convention).total for length in lengths]
    table.append([convention, *(f"{flops / 1e9:.1f}" for flops in counted)])
print(columns_text(table))
print("\n".join(f"{convention}: {says}" for convention, says in CONVENTIONS.items()))

# %% [markdown]
# None of them is wrong. Two figures under two conventions cannot be compared, and the longer the sequence, the less.

# %% [markdown]
# ## Measure
# First the ceilings: the best of what `measure.ceilings` tried, and of four short probes of our own. A read is among them because reading can be faster than copying. They are short because a short call has the better chance to be left alone, and a ceiling is what the machine does when it is.

# %% tags=["nbval-ignore-output"]
single, block = drawn(1), drawn(width // 4, width // 4)
into = torch.empty_like(block)
probes = {
    "product": lambda: torch.mm(block, block, out=into),
    "copy": lambda: xy.copy_(x),
    "read": lambda: torch.sum(x),
    "100 launches": lambda: [torch.add(single, single, out=single) for _ in range(100)],
}


def ceilings_of(seconds: dict[str, tuple[float, ...]]) -> tuple[float, float, float]:
    """FLOP/s, bytes/s and seconds a launch, by the best of each probe."""
    best = {what: min(runs) for what, runs in seconds.items()}
    moved = max(2 * x.nbytes / best["copy"], x.nbytes / best["read"])
    return 2 * len(block)**3 / best["product"], moved, best["100 launches"] / 100


def beside_the_probes(calls, rounds: int):
    """The ceilings, and the best seconds of each call, from the same rounds."""
    seconds = in_turn(probes | calls, rounds)
    return ceilings_of(seconds), {what: min(seconds[what]) for what in calls}


# %% tags=["nbval-ignore-output"]
rates = measure.ceilings()
peak, bandwidth, overhead = ceilings_of(in_turn(probes, rounds=7))
peak, bandwidth = max(peak, rates.flops[name]), max(bandwidth, rates.bandwidth["copy, large"])
print(f"measured on {rates.device}: {peak / 1e9:,.1f} GFLOP/s in {name}, {bandwidth / 1e9:,.1f} GB/s, "
      f"{seconds_text(overhead)} a launch; ridge at {ridge(peak, bandwidth):.1f} FLOPs a byte")

# %% [markdown]
# Now each operation's work, and from it the highest of its three floors. This is the prediction; nothing of it has been timed.

# %% tags=["nbval-ignore-output"]
s = x.itemsize
counts = {  # FLOPs, bytes
    "linear, many rows": linear(rows, width, width, s),
    "linear, one row": linear(1, width, width, s),
    "residual add": (width**2, 3 * s * width**2),
    "row sums": (width**2, s * width**2),
    "attention scores": (2 * heads * seq * seq * 128, s * heads * (seq * seq + 2 * seq * 128)),
    "add, one head": (128, 3 * s * 128),
}


def floors(flops: float, moved: float) -> dict[str, float]:
    return {"compute": flops / peak, "memory": moved / bandwidth, "overhead": overhead}


predicted = {what: max(floors(*work_of).items(), key=lambda floor: floor[1]) for what, work_of in counts.items()}
table = [["computed", "FLOPs a byte", "held up by", "takes at least"]]
for what, (flops, moved) in counts.items():
    table.append([what, f"{flops / moved:.3g}", predicted[what][0], seconds_text(predicted[what][1])])
print(columns_text(table))

# %% [markdown]
# And the clock: all six in turn, twenty-five rounds, the best of each. The probes run once more in the same rounds, so that a machine that is busier now than before is busier for both: an operation is held against the ceilings of its own minute. An operation is *on* a side when it reaches at least half of that side's ceiling. One that reaches half of neither is held up by something else.

# %% tags=["nbval-ignore-output"]
(peak, bandwidth, overhead), taken = beside_the_probes(calls, rounds=25)
bounds = {what: max(floors(*work_of).values()) for what, work_of in counts.items()}
table = [["measured", "time", "of the peak", "of the bandwidth", "so it is", "predicted", "time ÷ floor"]]
found = {}
for what, work_of in counts.items():
    reached = {side: floor / taken[what] for side, floor in floors(*work_of).items()}
    nearest = max(("compute", "memory"), key=reached.get)
    found[what] = nearest if reached[nearest] >= 0.5 else "overhead"
    table.append([what, seconds_text(taken[what]), f"{reached['compute']:.0%}", f"{reached['memory']:.0%}", found[what],
                  predicted[what][0], f"{taken[what] / bounds[what]:.2f}"])
print(columns_text(table))
agree = sum(found[what] == predicted[what][0] for what in counts)

# %% [markdown]
# More than all of a ceiling means one of three things. The ceiling was caught at a bad moment: run the cell again. Work was counted that nobody did. Or bytes came from a cache that was not thought of; large servers have caches as large as these matrices. The last row is far above even its floor. It is called once between large operations, so its code and its operands come from memory each time; the floor is of a hundred in a row.

# %%
roofline(f"{agree} of {len(counts)} operations are on the side that their work put them on",
         {what: (flops / moved, flops / taken[what]) for what, (flops, moved) in counts.items()},
         peak, bandwidth, f"{name}, ceilings and operations measured on {here.label} in one run")

# %% [markdown]
# The distance to the roof is what is left to win *without changing what is computed*. To win more, an operation must move along the picture: to the right, by doing more with each byte. That is what a larger batch does, what fusing an add into the product before it does, and what attention kernels do that never write the scores.
#
# One operation, moved from left to right by its rows alone:

# %% tags=["nbval-ignore-output"]
weights = itertools.cycle([w, x, y])  # another matrix each time, so that none waits in a cache
batches = {m: (drawn(m, width), drawn(m, width)) for m in (1, 4, 16, 64, 256)}
by_rows = {m: lambda a=a, to=to: torch.mm(a, next(weights).t(), out=to) for m, (a, to) in batches.items()}
(peak, bandwidth, overhead), row_times = beside_the_probes(by_rows, rounds=5)
table = [["rows", "FLOPs a byte", "floor, computed", "measured", "µs a row"]]
for m, seconds in row_times.items():
    flops, moved = linear(m, width, width, s)
    table.append([str(m), f"{flops / moved:.1f}", seconds_text(max(floors(flops, moved).values())),
                  seconds_text(seconds), f"{seconds / m * 1e6:,.0f}"])
print(columns_text(table))

# %% [markdown]
# The floor is flat up to the ridge and then rises: until there, more rows are nearly free. What is measured rises earlier where the library has no good kernel for a few rows. The last column is the price of a token; it is why a server waits to fill its batches.
#
# Now the training, on text that ships with Python.

# %% tags=["nbval-ignore-output"]
steps = pick(profile, smoke=10, lab=20, full=60)
training = models.training(small, job, here.torch, seed)
text = models.text.batches(job.micro_batch, job.seq, seed)
with watch(f"{small.name}, {job.precision}") as chart:
    for _ in range(steps):
        tokens, targets = (t.to(here.torch) for t in next(text))  # [B, T] each
        training.step(tokens, targets).item()  # .item() waits for the step
        chart.step(job.micro_batch)

# %% [markdown]
# The chart shows what the run does, with everything that happens on this machine meanwhile. For the share of a ceiling, steps and probes take turns, and the best step is held against the best product. The step's own floor is the sum of its operations' floors, each by its FLOPs and bytes.

# %% tags=["nbval-ignore-output"]
step = {"step": lambda: training.step(tokens, targets)}
(peak, bandwidth, overhead), best = beside_the_probes(step, rounds=11)
ops = work.step(small, job)
by_side = {"compute": 0.0, "memory": 0.0, "overhead": 0.0}
for op in ops:
    side, floor = max(floors(op.flops, op.bytes).items(), key=lambda item: item[1])
    by_side[side] += floor
asked = flops_per_token(small, job.seq).total * job.tokens
print(f"{len(ops)} operations a step do {sum(op.flops for op in ops) / 1e9:.1f} GFLOP; "
      f"the model asks for {asked / 1e9:.1f}, by the palm convention")
print("floors, computed: " + " · ".join(f"{side} {seconds_text(floor)}" for side, floor in by_side.items()))
print(f"measured on {here.label}: {seconds_text(best['step'])} a step, {job.tokens / best['step']:,.0f} tokens/s")

# %% [markdown]
# ## Compare

# %% tags=["nbval-ignore-output"]
shared = "MFU against the measured ceiling"
guessed = ("linear, many rows", "linear, one row", "residual add")
compare(mine,
        column("computed", {what: 1e3 * bounds[what] for what in guessed}, "ms", source="the highest floor"),
        column("measured", {what: 1e3 * taken[what] for what in guessed}, "ms", here.label))

# %% tags=["nbval-ignore-output"]
compare(mine_share,
        column("computed", {shared: 100 * asked / peak / sum(by_side.values())}, "%", source="the sum of all floors"),
        column("measured", {shared: 100 * asked / peak / best["step"]}, "%", here.label))

# %% [markdown]
# The computed column is a bound: the time below which the work cannot be done, and the share above which the MFU cannot rise, as long as the operations stay these. Between a share of one and the bound lies what the step does besides matrix products: norms, activations, sums, the optimizer, each a pass over memory with hardly any FLOPs. Between the bound and the measurement lies what the floors leave out: products too small to reach the peak, results written into memory that has just been taken, Python between the launches.
#
# The two gaps have different cures. Fusing, a larger batch or another kernel moves the bound. A profile finds what keeps you from it.
#
# ### How far off are your guesses?
# The course keeps each guess that was held against a measurement. This is yours so far, as factors. A curve that falls is the best evidence that something was learnt; one that stays high in one kind of quantity says which.

# %% tags=["nbval-ignore-output"]
calibration(progress.events())

# %% [markdown]
# ## At full size
# Others' runs, with their own tokens a second, under the convention that each of them uses. First the share of the dense peak:

# %% tags=["nbval-check-output"]
runs = [row for row in published("throughput") if row["case"] in ("B01", "B08")]
table = [["published run", "GPU", "tokens/s a GPU", "recompute", "MFU published", "computed", "HFU at most"]]
for row in runs:
    rate, recompute = float(row["tokens_per_second_per_gpu"]), row["recompute"]
    used = mfu(shape(row["model"]), gpu(row["gpu"]), rate, int(row["seq"]), convention=row["convention"],
               recompute=recompute or "none")
    table.append([row["model"], row["gpu"], f"{rate:,.0f}", recompute or "?", row["mfu_percent"],
                  f"{100 * used.mfu:.1f}", f"{100 * used.hfu:.1f}" if recompute else "?"])
    assert abs(100 * used.mfu - float(row["mfu_percent"])) <= 0.1
print(columns_text(table, left=2))
print("all under palm; sources: " + "; ".join(dict.fromkeys(row["source"] for row in runs)))

# %% [markdown]
# Compare the two rows of Llama 2 70B. With full recomputation the HFU is much the higher, and the MFU no higher at all. The units were busier, and the training was not faster; what was bought is memory, here for twice the micro-batch.
#
# A second source publishes TFLOP/s instead, of fp8 runs, and halves the attention. The same tokens under the other conventions give another figure; only one column is what its authors meant.

# %% tags=["nbval-check-output"]
table = [["published run, fp8", "GPU", "TFLOP/s published", *CONVENTIONS, "of the fp8 peak", "of the bf16 peak"]]
runs = [row for row in published("throughput") if row["case"] == "B03"]
for row in runs:
    run = shape(row["model"]), gpu(row["gpu"]), float(row["tokens_per_second_per_gpu"]), int(row["seq"])
    each = [mfu(*run, precision="fp8", convention=convention) for convention in CONVENTIONS]
    used, in_bf16 = (mfu(*run, precision=dtype, convention=row["convention"]) for dtype in ("fp8", "bf16"))
    table.append([row["model"], row["gpu"], f"{int(row['tflops_per_gpu']):,}", *(f"{u.tflops_per_gpu:,.0f}" for u in each),
                  f"{used.mfu:.1%}", f"{in_bf16.mfu:.1%}"])
    assert abs(used.tflops_per_gpu / float(row["tflops_per_gpu"]) - 1) <= 0.002
print(columns_text(table, left=2))
print(f"all under causal; source: {row['source']}")

# %% [markdown]
# The last row passes its bf16 peak, and nothing is wrong with it: its products ran in fp8. A utilization names three things or it names nothing: the convention, the precision of the peak, and the card.

# %% [markdown]
# ## Exercises
# ### 02.1 How many rows?
# A linear layer 4096 → 4096 in bf16, on an H100 SXM by its data sheet: 989 TFLOP/s dense, 3.35 TB/s. From how many rows on is it held up by compute? Input, weights and result are each moved once. Two in a hundred is near enough.

# %% tags=["stub"] exercise="02.1"
answer_1 = ...

# %% tags=["solution"] exercise="02.1"
# I = 2mkn / (2 (mk + kn + mn)), so 1/I = 1/n + 1/m + 1/k
turning = ridge(gpu("h100-sxm").peak("bf16"), gpu("h100-sxm").bandwidth)
answer_1 = 1 / (1 / turning - 2 / 4096)

# %% tags=["check"] exercise="02.1"
check("02.1", answer_1)

# %% [markdown]
# ### 02.2 Six operations on an H100
# Which of the three floors is the highest, and how high is it? Give for each the least time that it takes, in µs, in bf16 on the same card, with 5 µs for a launch. Count what must be moved to and from the card's memory, once.
#
# - **A** linear [16384, 4096] × [4096, 14336], a long batch
# - **B** the same layer while 64 requests generate one token each: [64, 4096] × [4096, 14336]
# - **C** the residual add of two tensors [16384, 4096]
# - **D** attention's scores of one sequence, written out: 32 heads, [8192, 128] × [128, 8192] each
# - **E** attention of the same sequence in one kernel that keeps the scores on the chip: both products, no mask; it reads queries, keys and values and writes the result
# - **F** the RMS norm of one token: [1, 4096]

# %% tags=["stub"] exercise="02.2"
answer_2 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}

# %% tags=["solution"] exercise="02.2"
def floor_us(flops: int, moved: int) -> float:
    """The highest of the three floors on an H100, µs."""
    card = gpu("h100-sxm")
    return 1e6 * max(flops / card.peak("bf16"), moved / card.bandwidth, 5e-6)


def product(m: int, k: int, n: int) -> tuple[int, int]:
    """FLOPs and bytes in bf16."""
    return 2 * m * k * n, 2 * (m * k + k * n + m * n)


answer_2 = {
    "A": floor_us(*product(16384, 4096, 14336)),  # compute: thousands of rows
    "B": floor_us(*product(64, 4096, 14336)),  # memory: 64 rows are 64 FLOPs a byte, far left of the ridge
    "C": floor_us(16384 * 4096, 3 * 2 * 16384 * 4096),  # memory: one FLOP for six bytes
    "D": floor_us(32 * 2 * 8192 * 128 * 8192, 32 * 2 * (2 * 8192 * 128 + 8192 * 8192)),  # memory: the scores are moved
    "E": floor_us(32 * 4 * 8192 * 128 * 8192, 32 * 2 * 4 * 8192 * 128),  # compute: only the edges of D are moved
    "F": floor_us(4 * 4096, 3 * 2 * 4096),  # the launch: a few KiB are moved in nanoseconds
}

# %% tags=["check"] exercise="02.2"
check("02.2", answer_2)

# %% [markdown]
# ### 02.3 Mend a benchmark
# This function reports times in which the result cannot have been computed, and other times that no training will ever see. Mend all of it.
#
# ```python
# def seconds_of(fn, inputs, warmup, repeats, clock, synchronize):
#     times = []
#     for _ in range(repeats):
#         begin = clock()
#         fn(inputs[0])
#         times.append(clock() - begin)
#     return sum(times) / len(times)
# ```
#
# `fn` queues its work on a device; `synchronize()` returns when the queue is empty. `inputs` is longer than what the device's cache holds, if they are taken in turn. `warmup` calls are slow. Now and then a call stumbles, or has the machine to itself. Return the usual seconds of one call, from an idle device until the result is there. Clock and device are played ones; the check looks at the ratio of your time to theirs.

# %% tags=["stub"] exercise="02.3"
def seconds_of(fn, inputs, warmup: int, repeats: int, clock, synchronize) -> float:
    """The usual seconds of fn(input) on an input that is not in the cache, from `repeats` timed calls."""
    ...


# %% tags=["solution"] exercise="02.3"
def seconds_of(fn, inputs, warmup: int, repeats: int, clock, synchronize) -> float:
    """The usual seconds of fn(input) on an input that is not in the cache, from `repeats` timed calls."""
    turn = itertools.cycle(inputs)
    for _ in range(warmup):
        fn(next(turn))
    synchronize()  # the queue is empty when the clock starts
    times = []
    for _ in range(repeats):
        begin = clock()
        fn(next(turn))
        synchronize()
        times.append(clock() - begin)
    return statistics.median(times)


# %% tags=["check"] exercise="02.3"
check("02.3", seconds_of)

# %% [markdown]
# ### 02.4 Count the FLOPs
# Write `count_flops(model, x)`: the FLOPs of all `nn.Linear` layers of a model in a forward *and* backward pass, from one forward pass only. A layer may be used twice. Some are frozen, and `x` itself needs no gradient: a product that nobody needs is not made. The model is left as it was found.

# %% tags=["stub"] exercise="02.4"
def count_flops(model, x) -> int:
    """FLOPs of the linear layers, forward and backward; x is [..., features]."""
    ...


# %% tags=["solution"] exercise="02.4"
def count_flops(model, x) -> int:
    """FLOPs of the linear layers, forward and backward; x is [..., features]."""
    total = 0

    def count(layer, inputs, output):
        nonlocal total
        product = 2 * inputs[0].numel() * layer.out_features  # rows × in × out, twice
        total += product * (1 + inputs[0].requires_grad + layer.weight.requires_grad)

    hooks = [layer.register_forward_hook(count) for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return total


# %% tags=["check"] exercise="02.4"
check("02.4", count_flops)

# %% [markdown]
# ### 02.5 From a log line
# ```
# llama-3.1-70b, bf16, every block recomputed, 64 × A100 80 GB
# step 2000 | loss 2.41 | 24.75 s/step | 64 sequences of 8,192 tokens a step
# ```
# Tokens a second and GPU, MFU and HFU (by the formula) in per cent, `palm` convention.

# %% tags=["stub"] exercise="02.5"
answer_5 = {"tokens/s a GPU": ..., "MFU": ..., "HFU": ...}

# %% tags=["solution"] exercise="02.5"
each_gpu = 64 * 8192 / 24.75 / 64  # tokens a step ÷ seconds ÷ GPUs
used = mfu(shape("llama-3.1-70b"), gpu("a100-80"), each_gpu, 8192, convention="palm", recompute="full")
answer_5 = {"tokens/s a GPU": each_gpu, "MFU": 100 * used.mfu, "HFU": 100 * used.hfu}

# %% tags=["check"] exercise="02.5"
check("02.5", answer_5)

# %% [markdown]
# ### 02.6 Which convention?
# Four dashboards print a utilization and do not say how. Find out; and bring B and C to `palm`, in per cent, so that they can be held against A.
#
# | log | model | GPU, precision | sequence | tokens/s a GPU | prints |
# |---|---|---|---|---|---|
# | A | llama-2-13b | a100-80, bf16 | 4,096 | 2,162 | 61.1 % |
# | B | llama-3.1-8b | h100-sxm, fp8 | 8,192 | 14,451 | 37.6 % |
# | C | llama-3.1-8b | h100-sxm, bf16 | 8,192 | 6,667 | 39.0 % |
# | D | llama-3.1-70b | a100-80, bf16, full recomputation | 8,192 | 331 | 69.0 % |
#
# `palm`, `no-embedding`, `causal`, or `recomputed`: palm with what is recomputed, which is an HFU.

# %% tags=["stub"] exercise="02.6"
answer_6 = {"A": ..., "B": ..., "C": ..., "D": ..., "B, palm": ..., "C, palm": ...}

# %% tags=["solution"] exercise="02.6"
def under_each(model, card, precision, seq, rate) -> dict[str, str]:
    each = {c: mfu(shape(model), gpu(card), rate, seq, 1, precision, c, "full") for c in CONVENTIONS}
    return {f"{100 * u.mfu:.1f}": c for c, u in each.items()} | {f"{100 * each['palm'].hfu:.1f}": "recomputed"}


answer_6 = {
    "A": under_each("llama-2-13b", "a100-80", "bf16", 4096, 2162)["61.1"],
    "B": under_each("llama-3.1-8b", "h100-sxm", "fp8", 8192, 14451)["37.6"],
    "C": under_each("llama-3.1-8b", "h100-sxm", "bf16", 8192, 6667)["39.0"],
    "D": under_each("llama-3.1-70b", "a100-80", "bf16", 8192, 331)["69.0"],
    "B, palm": 100 * mfu(shape("llama-3.1-8b"), gpu("h100-sxm"), 14451, 8192, precision="fp8").mfu,
    "C, palm": 100 * mfu(shape("llama-3.1-8b"), gpu("h100-sxm"), 6667, 8192, precision="bf16").mfu,
}

# %% tags=["check"] exercise="02.6"
check("02.6", answer_6)

# %% [markdown]
# ### 02.7 What is wrong with it?
# Six figures, and what is known about each. Choose for each the likeliest explanation, the one that reproduces the number. For three of them give the figure, too: what share of the right card's peak **B** is, how many ms **C** takes at least at the card's peak, and how many ms the first call of **E** took.
#
# - **A** A 7B model on H100s, bf16: the project's page says 46 %, your own division of the same tokens says 23 %.
# - **B** The run was moved from A100s to H100s. The log now prints an MFU of 104 %. Nothing else was changed.
# - **C** The product of two 4096 × 4096 matrices in bf16 on an RTX 4090: 0.03 ms.
# - **D** A 405B run on GB300: 2,522 TFLOP/s a GPU, more than the card's dense bf16 peak. The configuration names the precision of its products, and it is not bf16.
# - **E** A broadcast of one number among the GPUs: 20 ms on average over the hundred calls of the report. Later, in the training, 0.14 ms.
# - **F** A 70B run with full recomputation: MFU 52 %, HFU 69 %.
#
# `sparse peak`, `another card's peak`, `another precision's peak`, `no synchronisation`, `first call`, `nothing`

# %% tags=["stub"] exercise="02.7"
answer_7 = {
    "A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...,
    "B, % of the right peak": ..., "C, least ms": ..., "E, ms of the first call": ...,
}

# %% tags=["solution"] exercise="02.7"
answer_7 = {
    "A": "sparse peak",  # a factor of two: the sheet's larger figure assumes that half of the weights are zero
    "B": "another card's peak",  # 104 % of 312 is a third of 989
    "C": "no synchronisation",  # 2 · 4096³ FLOPs in that time are many times the card's peak
    "D": "another precision's peak",  # half of the fp8 peak
    "E": "first call",  # two seconds for the communicator, spread over a hundred calls
    "F": "nothing",  # 4/3 of the MFU: the forward pass ran twice
    "B, % of the right peak": 104 * gpu("a100-80").peak("bf16") / gpu("h100-sxm").peak("bf16"),
    "C, least ms": 1e3 * 2 * 4096**3 / gpu("rtx-4090").peak("bf16"),
    "E, ms of the first call": 100 * 20 - 99 * 0.14,
}

# %% tags=["check"] exercise="02.7"
check("02.7", answer_7)

# %% [markdown]
# ### 02.8 Twice the FLOP/s
# This year's card does 300 TFLOP/s and moves 2 TB/s. Next year's does twice the FLOP/s and moves no more. Which operations get faster? And how many times as fast are three at their floors, of 120, 240 and 480 FLOPs a byte?
#
# - `a`: all of them, by a factor of two
# - `b`: those that were right of the old ridge; by the full factor only those that are right of the new one
# - `c`: those that were left of the old ridge, because they had been waiting
# - `d`: those right of the old ridge, all by a factor of two

# %%
question("02.8")

# %% tags=["stub"] exercise="02.8"
answer_8 = {"which": ..., "120 FLOPs a byte, ×": ..., "240 FLOPs a byte, ×": ..., "480 FLOPs a byte, ×": ...}

# %% tags=["solution"] exercise="02.8"
answer_8 = {"which": "b", **{f"{I} FLOPs a byte, ×": min(600, 2 * I) / min(300, 2 * I) for I in (120, 240, 480)}}

# %% tags=["check"] exercise="02.8"
check("02.8", answer_8)

# %% [markdown]
# ## When it breaks
# The log of a GPT-2 training printed a plausible MFU for months. On the new node it prints more than a hundred per cent, step after step. The loss falls as it should. Nobody is alarmed: the new cards are fast.
#
# No run does more than all of the peak. So one of four things is not what the script believes: the tokens, the FLOPs a token, the peak, the time. The calculator goes through them:

# %% tags=["nbval-check-output"]
gpt2, believed = shape("gpt2"), gpu("a100-80")
tokens_per_second = 1.04 * believed.peak("bf16") / flops_per_token(gpt2, 1024).total  # what such a log amounts to
for warning in mfu(gpt2, believed, tokens_per_second, 1024).warnings:
    print(textwrap.fill(warning, 100))

# %% [markdown]
# The script held the peak of an A100 as a number, and the node has H100s. Against the right card:

# %% tags=["nbval-check-output"]
for card in ("a100-80", "h100-sxm"):
    print(f"{card}: {mfu(gpt2, gpu(card), tokens_per_second, 1024).mfu:.1%}")
sparse = mfu(shape("llama-2-7b"), gpu("h100-sxm"), 9600, 4096, precision="bf16").mfu / 2
print(f"and with the sparse peak, llama-2-7b at 9,600 tokens/s on an H100: {sparse:.1%} instead of {2 * sparse:.1%}")

# %% [markdown]
# The figure over a hundred is the lucky case: it cannot be, so somebody looks. The last line is the same mistake in the other direction, twice the true peak, and it gives a number that nobody would question. Check both ends: compute the rate in FLOP/s and hold it against the ceiling that you measured yourself.

# %% [markdown]
# ## Explain it
# Without notes: **from a log line to an MFU: which four numbers go in, and in which of them can a factor of two hide?** Then:
#
# 1. A layer takes 0.03 ms whatever its size. What is being timed, and which line mends it?
# 2. Why does generating one token for one user take nearly as long as for sixteen?
# 3. A kernel reaches a tenth of the peak. What do you have to know before you call it bad?
# 4. Recomputation was switched on. HFU rose, MFU fell, memory fell. Was it a mistake?
# 5. Your new kernel is 3 % faster. What would you want to see before you believe it?

# %% [markdown]
# ## Take away
# > **Wait, warm up, change the inputs, take several, and say which of them you report.** A clock that is read too early gives no error.
#
# > **An operation has three floors: FLOPs over peak, bytes over bandwidth, the launch.** The highest one holds it up; only against that one is it fast or slow.
#
# > **A utilization has a convention, a precision and a card.** Over a hundred per cent one of them is wrong; below it, one of them may be.
#
# Reading: *Roofline: An Insightful Visual Performance Model for Multicore Architectures* (Williams, Waterman, Patterson, 2009); *PaLM* (Chowdhery et al., 2022), appendix B, for MFU; *Reducing Activation Recomputation in Large Transformer Models* (Korthikanti et al., 2022) for HFU. Next: 03, where the rest of the memory went.
