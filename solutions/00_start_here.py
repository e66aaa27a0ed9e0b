# %% [markdown]
# # 00 · Start here
#
# What this machine can do, measured, and how to work through a course that asks for a number before it shows one.
#
# **Minutes** 45 · **Hardware** cpu, gpu · **Needs** –
#
# After this lesson you can
#
# - measure what a device reaches, and say what a peak figure is a peak of;
# - commit a guess, run the experiment, and read the two side by side;
# - tell the six kinds of evidence apart, and GB from GiB;
# - use `check`, `hint` and `solution`;
# - say which lessons will run on what, on this machine.

# %%
import statistics
import time

import torch
import torch.distributed as dist

from gpucourse import check, compare, guess, hint, measure, question, ranks, solution
from gpucourse.catalog import GiB, gpu, pick, seconds_text
from gpucourse.course.doctor import card
from gpucourse.evidence import column, columns_text
from gpucourse.predict.link import fit

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of what is drawn at random

# %% [markdown]
# ## The question
# The vendor's page gives your card a number of TFLOP/s. Your training, by the arithmetic of its own layers, reaches a tenth of it. Three people look at the same two numbers. One says that the page lies. One says that the code is bad. One says that nothing is wrong, because the two numbers are about different things. Who is right?
#
# None of them can know. Between the page and the training a third number is missing: what *this* machine reaches on the simplest operation there is, in the same precision, measured the same way. The page says what the silicon could do if every unit were busy in every cycle. The training does many things that are not matrix products. A large matrix product, run here and now, is the bridge.

# %% [markdown]
# ## Predict
# Below, this machine multiplies square matrices in several precisions and copies memory. Before it does, write down what you expect, in TFLOP/s (10¹² floating-point operations a second) and GB/s (10⁹ bytes a second). Most people who have trained models for years have never had to say these numbers. A guess that is wrong by ten is not a failure: it is the reason to measure, and the course keeps how far off you were, so that you can watch it shrink.
#
# Put a number in place of each `...`. A blank is allowed; the notebook runs without you.

# %%
mine = guess("00.g1", {"fp32 product": ..., "bf16 product": ...}, "TFLOP/s")

# %%
mine_copy = guess("00.g2", {"copy, large": ...}, "GB/s")

# %% [markdown]
# ## Mechanism
# ### A rate is work over time, and both need care
# The work of a product of an $m \times k$ and a $k \times n$ matrix is one multiplication and one addition for each of the $m \cdot n \cdot k$ pairs: $2mnk$ operations, whatever the hardware does to get there. The time is less simple. Run the next cell and look at the first call.

# %% tags=["nbval-ignore-output"]
size = 512
a, b = torch.randn(size, size), torch.randn(size, size)  # [512, 512] each, fp32


def seconds(call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


with measure.quiet():  # nothing else of the course is timed meanwhile
    runs = [seconds(lambda: a @ b) for _ in range(31)]
work = 2 * size**3
print(f"first call {seconds_text(runs[0])}, median of the next 30 {seconds_text(statistics.median(runs[1:]))}")
print(f"{work / runs[0] / 1e12:.3f} TFLOP/s by the first call, {work / statistics.median(runs[1:]) / 1e12:.3f} by the median")

# %% [markdown]
# The first call pays for things that happen once: threads start, memory is taken, a kernel is chosen. The later ones differ among themselves, because the machine does other things too; so a single run is an anecdote, and a mean is at the mercy of its worst value. The course reports a median with the middle half of the runs around it, after calls that are thrown away.
#
# On a GPU there is one more trap. A call returns when the work has been *queued*, and a clock that does not wait measures the queueing. Lesson 02 takes that apart. Until then `measure.timed` does it right:

# %% tags=["nbval-ignore-output"]
print(measure.timed(torch.matmul, a, b, name=f"{size} × {size} product, fp32"))

# %% [markdown]
# A copy has no operations worth counting; its work is bytes. A copy of one GiB moves *two*: it reads one and writes one. Which of the two a published bandwidth counts is the first thing to ask about it.
#
# ### GB and GiB
# A GB is 10⁹ bytes, a GiB 2³⁰. Vendors write GB for both: the bandwidth on a data sheet counts in powers of ten, the memory in powers of two. Many tools print GB and mean GiB as well. That the memory of a card cannot be meant in powers of ten is seen from what torch reports:

# %% tags=["nbval-check-output"]
h100 = gpu("h100-sxm")
print(f"{h100.title}: {h100.memory_gb} · 10⁹ bytes would be {h100.memory_gb * 1e9 / GiB:.2f} GiB;",
      f"torch reports {h100.capacity_gib:.2f} GiB")

# %% [markdown]
# What torch reports is still less than the box says: the driver keeps a part. In this course memory is in bytes, KiB, MiB and GiB, always; GB stands only where a vendor's figure is quoted. Time is in s, ms and µs.
#
# ### Six kinds of evidence
# Every figure here says where it comes from. They are not equally strong, and the course never lets one pass for another.
#
# | kind | what it is | what it can be wrong about |
# |---|---|---|
# | computed | a formula with the values put in | what the formula leaves out |
# | dry run | the real code on tensors that have shapes and no memory | what happens inside a kernel |
# | measured | here, now, on the device named beside it | the next machine, and the next minute |
# | simulated | ranks in one process, a link that is paced, a stage that sleeps | everything that the model of it ignores |
# | recorded | measured by us earlier, with device and date | your device |
# | published | somebody else's figure, with its source | what they did not write down |
#
# A laptop without a GPU computes, dry-runs and measures *itself*. Where a lesson needs a GPU and there is none, it shows a recorded or published figure beside your own and says which is which. A CPU's figure is never shown as a GPU's.

# %% [markdown]
# ## Measure
# The ceilings of this machine: the best rate of several calls, each at the largest size that still takes a moment. It takes some seconds.

# %% tags=["nbval-ignore-output"]
rates = measure.ceilings()
rates

# %% [markdown]
# One rate is left: how fast two processes agree on a sum, which is what training on several GPUs does after every step. `ranks.run` starts a function of this notebook on two processes and brings back what each returns. Two figures describe it, what a message costs however short it is, and what a byte costs; lesson 09 takes them apart.

# %% tags=["nbval-ignore-output"]
sizes = [2**12, 2**16, 2**20, 2**24]  # bytes


def agree(repeats: int) -> list[float]:
    """Seconds of an all-reduce of each size, the least of several."""
    def once(x: torch.Tensor) -> float:
        dist.barrier()
        return seconds(lambda: dist.all_reduce(x) or x.sum().item())  # .item() waits

    tensors = [torch.ones(size // 4, device=ranks.device()) for size in sizes]
    return [min(once(x) for _ in range(repeats)) for x in tensors]


with measure.quiet():
    between = fit("all-reduce", 2, sizes, ranks.run(agree, 2, 9)[0])
print(f"between two processes: {seconds_text(between.latency)} a message, {between.bandwidth / 1e9:.2g} GB/s, "
      f"measured on {measure.device().label}")

# %% [markdown]
# And the machine itself, as `gpucourse doctor` shows it: what there is, what each lesson will run on, what is missing and how to get it.

# %% tags=["nbval-ignore-output"]
card(rates)

# %% [markdown]
# ## Compare
# Your guesses, beside what was measured.

# %% tags=["nbval-ignore-output"]
compare(mine, mine_copy, rates)

# %% [markdown]
# Read the table with three questions, the same three for every table of this course. *What is each column evidence of?* The rates are measured, on the device at the foot, and are a lower bound of what it can do: a better library, a colder room or an idle neighbour would raise them. *How far off was I, and in which direction?* *What would explain it?* Two common surprises: bf16 is faster than fp32 only where the processor has instructions for it, and slower by a large factor where it does not; and a copy that fits into a cache is faster by a large factor than one that does not.

# %% [markdown]
# ## At full size
# The same two numbers for cards that you may meet, from the vendors' pages, dense, beside the best large bf16 product that others have measured on them where that is known. The last column is the question of this lesson, answered for each: even the simplest operation does not reach the page.

# %% tags=["nbval-check-output"]
names = ["t4", "a100-80", "h100-sxm", "h200", "b200", "mi300x"]
table = [["published", "TFLOP/s, 16 bit", "TB/s", "achieved, bf16", "achieved / peak"]]
for card_of in map(gpu, names):
    peak = card_of.tflops.get("bf16", card_of.tflops.get("fp16"))
    best = card_of.achievable_bf16
    table.append([card_of.title, f"{peak:g}", f"{card_of.memory_tb_s:g}", f"{best:g}" if best else "–",
                  f"{best / peak:.0%}" if best else "–"])
print(columns_text(table))

# %% [markdown]
# How far apart are these machines? Take the forward and backward pass of GPT-2 over one million tokens, six operations for each parameter and token. If nothing but matrix products at the measured rate stood in the way, this machine would need the time in the first line; the cards would need that of the others at the rate that others achieved.

# %% tags=["nbval-ignore-output"]
operations = 6 * 124_439_808 * 1_000_000  # 6 · parameters · tokens
best_here = max(rates.flops.values())
print(f"{rates.device:24s} {seconds_text(operations / best_here):>9s}   measured rate")
for card_of in map(gpu, names):
    if card_of.achievable_bf16:
        print(f"{card_of.title:24s} {seconds_text(operations / (card_of.achievable_bf16 * 1e12)):>9s}   published rate")

# %% [markdown]
# That is why the experiments here are small on a laptop and large on a GPU, and why a model of full size is *predicted* and dry-run everywhere. What carries over from a small experiment is the reason, not the number.

# %% [markdown]
# ## Exercises
# How they work: write your answer in place of `...`, run the cell, run the `check` below it. A check says what it looked at and where a wrong answer goes wrong, never the answer. `hint("00.1")` gives the next of several hints, from a question to most of the way. `solution("00.1")` opens after one attempt. Progress is kept on this machine, and `gpucourse progress` shows it.
#
# ### 00.1 The work of a product
# How many GFLOP (10⁹ operations) does the product of a 4096 × 1024 and a 1024 × 8192 matrix take?

# %% tags=["stub"] exercise="00.1"
answer_1 = ...

# %% tags=["solution"] exercise="00.1"
answer_1 = 2 * 4096 * 1024 * 8192 / 1e9

# %% tags=["check"] exercise="00.1"
check("00.1", answer_1)

# %% [markdown]
# ### 00.2 GB, GiB, and what fits
# A model has 7 · 10⁹ parameters in 16 bits. How many GB are its weights, how many GiB, and how many GiB are left on a card whose memory torch reports as 22.03 GiB?

# %% tags=["stub"] exercise="00.2"
answer_2 = {"weights, GB": ..., "weights, GiB": ..., "left, GiB": ...}

# %% tags=["solution"] exercise="00.2"
weights = 2 * 7e9  # bytes
answer_2 = {"weights, GB": weights / 1e9, "weights, GiB": weights / GiB, "left, GiB": 22.03 - weights / GiB}

# %% tags=["check"] exercise="00.2"
check("00.2", answer_2)

# %% [markdown]
# ### 00.3 A clock that can be trusted
# Write the measurement: call `fn` once for nothing, then `repeats` times under the clock, and return the rate in FLOP/s by the median. The clock is passed in, and it is not the real one: the check plays a machine whose first call is slow and whose later calls sometimes stumble. Read the clock just before and just after each timed call.

# %% tags=["stub"] exercise="00.3"
def rate_of(fn, flops: float, repeats: int, clock) -> float:
    """FLOP/s of `fn`, which does `flops` operations a call, by the median of `repeats` timed calls."""
    ...


# %% tags=["solution"] exercise="00.3"
def rate_of(fn, flops: float, repeats: int, clock) -> float:
    """FLOP/s of `fn`, which does `flops` operations a call, by the median of `repeats` timed calls."""
    fn()
    times = []
    for _ in range(repeats):
        begin = clock()
        fn()
        times.append(clock() - begin)
    return flops / statistics.median(times)


# %% tags=["check"] exercise="00.3"
check("00.3", rate_of)

# %% [markdown]
# ### 00.4 What kind of evidence?
# For each statement: `computed`, `dry run`, `measured`, `simulated`, `recorded` or `published`?
#
# - **A** "This model's step peaks at 29 GiB: I ran its code on fake tensors."
# - **B** "An H100 reaches 795 TFLOP/s in bf16, says a repository that I trust."
# - **C** "The weights take 2 bytes × 8 billion."
# - **D** "Eight ranks agree, in one process that plays all of them."
# - **E** "The copy runs at 38 GB/s on this laptop."
# - **F** "Last month, on our H200, this lesson took nine seconds: the file has the date and the versions."

# %% tags=["stub"] exercise="00.4"
answer_4 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}

# %% tags=["solution"] exercise="00.4"
answer_4 = {"A": "dry run", "B": "published", "C": "computed", "D": "simulated", "E": "measured", "F": "recorded"}

# %% tags=["check"] exercise="00.4"
check("00.4", answer_4)

# %% [markdown]
# ### 00.5 Where this machine turns
# An operation that does few FLOPs for each byte it moves waits for memory; one that does many waits for the arithmetic. Where is the turn on *this* machine? Use the fp32 product and the large copy as measured above (`rates.flops`, in FLOP/s, and `rates.bandwidth`, in bytes/s), and give FLOPs a byte.

# %% tags=["stub"] exercise="00.5"
answer_5 = ...

# %% tags=["solution"] exercise="00.5"
answer_5 = rates.flops["fp32"] / rates.bandwidth["copy, large"]

# %% tags=["check"] exercise="00.5"
check("00.5", answer_5, given=rates)

# %% [markdown]
# ### 00.6 A factor of two
# Two pages give the same card 989 and 1,979 TFLOP/s in bf16. Both are right. Which of these explains it? How many ms does the product of two 8192 × 8192 matrices in bf16 take on it at least? And what share of its peak, in per cent, has a kernel reached that does 700 TFLOP/s?
#
# - `a`: one counts a multiply and an add as one operation
# - `b`: one is with the boost clock, the other with the base clock
# - `c`: one assumes that half of the weights are zero, in a fixed pattern
# - `d`: one is for fp8, which has half the bits
#
# This one can be answered with the form below, by mouse or by keyboard.

# %%
question("00.6")

# %% tags=["stub"] exercise="00.6"
answer_6 = {"why": ..., "ms at least": ..., "of 700 TFLOP/s, %": ...}

# %% tags=["solution"] exercise="00.6"
answer_6 = {"why": "c", "ms at least": 2 * 8192**3 / 989e12 * 1e3, "of 700 TFLOP/s, %": 700 / 989 * 100}

# %% tags=["check"] exercise="00.6"
check("00.6", answer_6)

# %% [markdown]
# ## When it breaks
# A cell that multiplied two matrices in fp16 "to save time" has not come back for a minute. The same line in fp32 took a moment. Nothing is wrong with the kernel; nothing is printed.
#
# fp16 is a format that GPUs compute in. A CPU may have no instructions for it, and then every product is made of conversions, one element at a time. Here is the same small product in both, taken in turn, so that a machine that slows down slows both.

# %% tags=["nbval-ignore-output"]
rows = pick(profile, smoke=128, lab=128, full=256)
x32 = torch.randn(rows, rows)  # [128, 128]
x16 = x32.half()
print(measure.alternate(lambda: x16 @ x16, lambda: x32 @ x32, rounds=9, names=("the fp16 product", "the fp32 product")))

# %% [markdown]
# A large ratio means: no fast kernel here, and the time grows with the cube of the size. The lessons that need fp16 keep it to tiny tensors on a CPU, and size every experiment from the rates measured in the same run. When a cell seems to hang, interrupt it (the ■ in the toolbar); that always works, and the chart of a watched cell survives it.

# %% [markdown]
# ## Explain it
# Without notes: **what are the three numbers between a vendor's page and a training run, and what lies between each two of them?** Then:
#
# 1. Why is the first call left out, and why a median rather than a mean?
# 2. A tool prints "GB" and the number is larger than the card's size in powers of ten allows. What does it mean?
# 3. Which of the six kinds of evidence can a laptop without a GPU produce about an H100?
# 4. Your guess was off by ten. What do you do with that?
#
# How to study from here: one sitting for a lesson's concepts, up to *Compare*; one for the lab, its exercises; and on another day one to explain the checkpoint without notes. Do not go on because the words are familiar. Go on when you can choose a method, state its trade-off, and diagnose a failure.

# %% [markdown]
# ## Take away
# > **A peak is a peak of something.** Ask which precision, dense or sparse, and what the simplest operation reaches here.
#
# > **Guess first, in numbers.** The distance between guess and measurement is what there is to learn.
#
# > **Every figure has a kind.** Computed, dry run, measured, simulated, recorded, published: say which, and on what.
#
# Reading: the vendors' data sheets for a card that you use, with the footnotes. Next: 01, where the bytes of a training step go.
