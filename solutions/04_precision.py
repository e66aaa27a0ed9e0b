# %% [markdown]
# # 04 · Precision
#
# What a number becomes in sixteen, eight and four bits, which numbers of a training may be rounded, and what fails without a message when the wrong one is.
#
# **Minutes** 90 · **Hardware** cpu, gpu · **Needs** 00, 01
#
# After this lesson you can
#
# - compute what a number becomes in any format from its three bit counts;
# - say in which type autocast runs an operation, and what it leaves alone;
# - keep fp16 gradients alive with a loss scale, and bf16 weights moving with a master copy or stochastic rounding;
# - choose the scale of an fp8 tensor or of a block, and say what it costs;
# - choose a precision for a card, and tell emulated bf16 from real.

# %%
import copy
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from gpucourse import check, compare, dryrun, guess, hint, measure, models, predict, question, solution, watch
from gpucourse.catalog import GiB, Job, MiB, gpt, gpu, pick, published, shape
from gpucourse.evidence import Readings, column, columns_text
from gpucourse.live.ranges import ranges
from gpucourse.measure.sixteen_bit import sixteen_bit, without_instructions
from gpucourse.predict.blocks import MXFP4, MXFP8, NVFP4, block_scaled, scaled, whole_scale
from gpucourse.predict.formats import BF16, E2M1, E4M3, FORMATS, FP16, FP32, rounded

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of weights, text and random tensors

# %% [markdown]
# ## The question
# A team fine-tunes a model that fits in fp32 on no card they have. They put all of it into bf16: weights, gradients, moments. Memory halves, and it fits. The loss is finite, the gradient norm healthy, the learning rate the one from the paper. After an epoch the evaluation is where it was. Someone doubles the learning rate: the same. Someone multiplies it by ten: now it moves, and two days later it diverges.

# %% tags=["nbval-check-output"]
xl, card = shape("gpt2-xl"), gpu("rtx-4090")
way = Job(micro_batch=1, seq=1024, recompute="full", foreach=False, fused=True)
for precision in ("fp32", "bf16-autocast", "bf16"):
    ledger = predict.memory(xl, way.but(precision=precision))
    print(f"{xl.name}, {precision:14s} {ledger.peak / GiB:5.1f} GiB allocated, fits {card.title}: {ledger.fits(card.name)}")

# %% [markdown]
# Nothing in the log is wrong. Each update was computed, and computed well. What became of it is a question about the number it was added to.

# %% [markdown]
# ## Predict
# 768 weights of a norm all start at 1. They are trained for 100 steps of AdamW with a learning rate of 6e-4, three times: weights and optimizer in bf16; bf16 weights with an fp32 master copy, which the optimizer updates and which is copied back after each step; everything in fp32. How many of the 768, *as the model reads them*, will differ from 1 at the end?

# %%
mine = guess("04.g1", {"bf16": ..., "bf16, fp32 master": ..., "fp32": ...}, "weights moved")

# %% [markdown]
# And one about fp16. A small language model is trained until it is no longer random, and the gradient of the loss with respect to its logits, over a batch of 2,048 tokens, is cast to fp16. What percentage of that gradient becomes exactly zero?

# %%
mine_zero = guess("04.g2", {"zero in fp16": ...}, "%")

# %% [markdown]
# ## Mechanism
# ### Three fields
# A floating-point number is a sign, an exponent and a mantissa. The exponent says between which two powers of two it lies, the mantissa at which of the evenly spaced places in between. So a format is two counts of bits: the exponent's decide how large and how small a number may be, the mantissa's how many places there are between 1 and 2.

# %% tags=["nbval-check-output"]
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2,
         "e4m3": torch.float8_e4m3fn}
table = [["format", "bits", "exponent", "mantissa", "largest", "smallest normal", "smallest", "next after 1"]]
for name, f in FORMATS.items():
    table.append([name, f"{f.bits}", f"{f.exponent}", f"{f.mantissa}", f"{f.largest:.4g}", f"{f.smallest_normal:.3g}",
                  f"{f.smallest:.3g}", f"1 + {f.epsilon:.3g}"])
    if name in TORCH:
        known = torch.finfo(TORCH[name])
        assert (f.largest, f.smallest_normal, f.epsilon) == (known.max, known.smallest_normal, known.eps)
print(columns_text(table))

# %% [markdown]
# The two 16-bit formats spend the same bits differently. bf16 is fp32 with the lower half of its bits cut off: the same range, and steps of almost a per cent. fp16 has steps eight times as fine, and ends at 65,504. tf32 is not a type that a tensor can have: it is what a tensor core reads of an fp32 operand, 19 of its 32 bits (whether the rest is rounded or cut off is the hardware's affair; here it is rounded). Below the smallest normal number the spacing stops shrinking: those *subnormals* lose a bit with each halving, until half of the smallest rounds to zero.
#
# Rounding to the nearest number then takes three lines. Between two powers of two the numbers are evenly spaced, so divide by the spacing, round to a whole number, multiply again. A tie goes to the even one, which Python's `round` does as well.

# %%
def nearest(value: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The nearest number of a format, ties to even, as long as it is not too large."""
    lowest = 2 - 2 ** (exponent_bits - 1)  # the exponent of the smallest normal number
    exponent = max(math.frexp(value)[1] - 1, lowest)  # 2**exponent <= |value|, but for subnormals
    spacing = 2.0 ** (exponent - mantissa_bits)
    return round(value / spacing) * spacing


# %% [markdown]
# Three ways to round stand against each other here: this arithmetic; the bit fields of `gpucourse.predict.formats`, which shift whole numbers; and torch's own cast. For tf32, which torch cannot cast to, the 13 lower bits of the fp32 pattern are rounded off.

# %%
def by_torch(values: torch.Tensor, name: str) -> torch.Tensor:
    """fp32 values [N] as a format holds them, in fp32 again."""
    if name == "tf32":
        code = values.view(torch.int32)
        return ((code + 0xFFF + ((code >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    return values.to(TORCH[name]).float()


# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
drawn = torch.randn(2000) * torch.randn(2000).mul(2).exp()  # [2000], many magnitudes, all below 448
drawn = drawn.clamp(-440, 440)
for name, f in FORMATS.items():
    if name == "e2m1":
        continue  # torch has no cast to four bits; below
    bits = [rounded(v, f) for v in drawn.tolist()]
    assert bits == by_torch(drawn, name).tolist() == [nearest(v, f.exponent, f.mantissa) for v in drawn.tolist()]
    off = max(abs(b / v - 1) for b, v in zip(bits, drawn.tolist(), strict=True) if abs(v) >= f.smallest_normal)
    print(f"{name}: {len(bits):,} values, the same by arithmetic, by bits and by torch; "
          f"relative error at most {off:.2g}, half a step {f.epsilon / 2:.2g}")

# %% [markdown]
# The relative error never exceeds half of the format's step at 1, at any magnitude that is normal. That is the whole bargain of floating point. Some values worth knowing by heart:

# %% tags=["nbval-check-output"]
values = [0.1, 257.0, 2049.0, 65520.0, 3e-5, 3e-8, 1 - 6e-4]
names = ["fp32", "tf32", "bf16", "fp16"]
table = [["value", *names]]
for value in torch.tensor(values).tolist():  # as fp32 has them
    row = [rounded(value, FORMATS[name]) for name in names]
    assert row == [by_torch(torch.tensor([value]), name).item() for name in names]
    table.append([f"{value:.8g}", *(f"{x:.8g}" for x in row)])
print(columns_text(table))

# %% [markdown]
# fp16 has no 65,520 and no 3e-8. bf16 has neither 257 nor 0.9994, and the last one is the question's whole trouble, to which we come back.
#
# What is too large becomes infinity in fp32, bf16, fp16 and e5m2. For e4m3 the format's authors left no infinity, and two customs exist: NaN, or the largest number (*saturating*). PyTorch's cast gave NaN for years, and saturates since 2026 (pull request 178817), as the kernels do.

# %% tags=["nbval-check-output"]
too_large = torch.tensor([65520.0, 500.0])
print("65,520 in fp16:", rounded(65520.0, FP16), "by bits,", by_torch(too_large, "fp16")[0].item(), "by torch")
print("500 in e4m3:", rounded(500.0, E4M3), "or, saturating,", rounded(500.0, E4M3, saturate=True), "by bits")
seen = by_torch(too_large, "e4m3")[1].item()
assert seen == rounded(500.0, E4M3, saturate=True) or math.isnan(seen)

# %% [markdown]
# ### A sum that stops
# Add 1 to a running sum, again and again. As soon as the spacing at the sum is 2, adding 1 lands halfway between two numbers, the tie goes to the even one, and the sum stands still for ever. No error, no warning.

# %% tags=["nbval-check-output"]
for name in ("bf16", "fp16", "e4m3"):
    by_bits, total = 0.0, torch.zeros((), dtype=TORCH[name])
    for _ in range(5000):
        by_bits = rounded(by_bits + 1.0, FORMATS[name])
        total = (total.float() + 1.0).to(TORCH[name])
    assert by_bits == total.item()
    print(f"{name}: after 5,000 times + 1 the sum is {by_bits:.0f}")
print("torch.sum of 5,000 ones in bf16:", torch.ones(5000, dtype=torch.bfloat16).sum().item())

# %% [markdown]
# "bf16 cannot sum" is therefore half true. `torch.sum` keeps its running sum in fp32 and rounds once, at the end: the nearest bf16 number to 5,000. A loop that you write, a metric that you accumulate, a gradient that micro-batches add into, has no such help.
#
# A matrix product is a sum too, as long as its inner dimension. The inputs may be 16-bit; what decides the error is the accumulator. Below, 64 dot products of growing length with bf16 inputs, in one process, with the accumulator rounded after each addition.

# %%
def by_bits_sum(terms: torch.Tensor, name: str) -> float:
    """A running sum in whole-number arithmetic; torch goes from fp64 to 16 bits by way of fp32, so this does too."""
    total = 0.0
    for term in terms.tolist():
        total = rounded(rounded(total + term, FP32), FORMATS[name])
    return total


# %% tags=["nbval-check-output"]
def error(length: int, name: str, flush: int = 0) -> float:
    """Relative error of dot products of bf16 inputs; with `flush` the sum moves into fp32 every so many terms."""
    torch.manual_seed(seed)
    x, w = torch.rand(2, length, 64).bfloat16().double()  # [length, 64] each, between 0 and 1
    total, part = torch.zeros(64), torch.zeros(64, dtype=TORCH[name])
    for i in range(length):
        part = (part.double() + x[i] * w[i]).to(TORCH[name])
        if flush and (i + 1) % flush == 0:
            total, part = total + part.float(), torch.zeros_like(part)
    if not flush:
        assert by_bits_sum(x[:, 0] * w[:, 0], name) == part[0].item()
    exact = (x * w).sum(0)
    return ((total + part.float()).double() / exact - 1).abs().mean().item()


table = [["terms", "fp32", "fp16", "bf16", "bf16, into fp32 every 64"]]
for length in (64, 512, 4096):
    errors = [*(error(length, name) for name in ("fp32", "fp16", "bf16")), error(length, "bf16", flush=64)]
    table.append([f"{length:,}", *(f"{e:.0e}" for e in errors)])
print(columns_text(table))

# %% [markdown]
# Tensor cores multiply 16-bit inputs and accumulate in fp32: that is why a bf16 product of any size is usable. It is not a law of nature. On an H100 the fp8 product keeps about 14 bits while it adds, which is why DeepSeek-V3 moves its partial sums into fp32 every 128 terms (its technical report, section 3.3.2); the last column is that cure.
#
# ### Autocast: a type for each operation
# Mixed precision rests on one observation: products tolerate rounded inputs, sums and exponentials do not. Autocast applies it operation by operation, by lists. Here is what it does on this device, with fp32 and with bf16 inputs, beside CUDA's list as published.

# %%
here = measure.device()
kind = here.kind
torch.manual_seed(seed)
weight = torch.randn(16, 16, device=here.torch, requires_grad=True)
OPERATIONS = {
    "matmul": lambda x: x @ weight, "linear": lambda x: F.linear(x, weight),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3), "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(8, dtype=torch.int64, device=x.device)),
    "exp": torch.exp, "sum": torch.sum, "gelu": F.gelu, "add": lambda x: x + x,
}
x32 = torch.randn(8, 16, device=here.torch)  # [8, 16]
table = [["operation", "given fp32", "given bf16", "", "CUDA, published"]]
for row in published("autocast"):
    with torch.autocast(kind, torch.bfloat16):
        given = [OPERATIONS[row["operation"]](x).dtype for x in (x32, x32.bfloat16())]
    table.append([row["operation"], *(str(d).removeprefix("torch.") for d in given), "", row["cuda"]])
print(f"result types under autocast to bf16, measured on {here.label}\n\n{columns_text(table)}\n\n{row['source']}")

# %% [markdown]
# Read the softmax's row. On CUDA autocast brings it up to fp32; on a CPU it stays in what it is given. The lists belong to the device: what is safe on one need not be on the other.
#
# What autocast *stores* is short to say: nothing. Weights, gradients and moments stay in fp32, and each product gets a rounded copy of its inputs, the weights among them.

# %% tags=["nbval-check-output"]
with torch.autocast("cpu", torch.bfloat16):
    layer = nn.Linear(64, 64)
    y = layer(torch.randn(8, 64))
y.float().square().mean().backward()
print("result", y.dtype, "· weight", layer.weight.dtype, "· its gradient", layer.weight.grad.dtype)

# %% [markdown]
# Those copies of the weights are needed again in backward, and are kept. So autocast halves most of what is proportional to tokens, and adds two bytes for each weight of a matrix, whatever the batch. With few tokens it *costs* memory. For GPT-2, what its blocks hold for backward at the end of the forward pass:

# %% tags=["nbval-check-output"]
gpt2, kept = shape("gpt2"), {}
for tokens in (1, 16, 128, 512, 1024):
    kept[tokens] = [predict.memory(gpt2, Job(1, tokens, precision=p)).memory().at["forward"]["activations"] / MiB
                    for p in ("fp32", "bf16-autocast")]
print(columns_text([["tokens", "fp32, MiB", "bf16-autocast, MiB", "computed"],
                    *([f"{n:,}", f"{a:,.1f}", f"{b:,.1f}", "costs" if b > a else "saves"] for n, (a, b) in kept.items())]))
dry = [dryrun.memory(gpt2, Job(1, 16, precision=p)).at["forward"]["activations"] / MiB
       for p in ("fp32", "bf16-autocast")]
print(f"16 tokens, by a dry run: {dry[0]:.1f} and {dry[1]:.1f} MiB")

# %% [markdown]
# ### fp16: two ends
# Everything that flows backward through a 16-bit product is 16-bit as well. The loss is a mean over tokens, so its gradient at the logits is a probability divided by the number of tokens: small, and smaller the better the model and the larger the batch. Here is a model that has learned something, and its gradient, on the scale of powers of two.

# %% tags=["nbval-ignore-output"]
small = gpt("small", layers=2, hidden=64, heads=4, vocab=256, context=64)
job = Job(micro_batch=4, seq=64)
trained = models.training(small, job, here.torch, seed)
trained.optimizer.param_groups[0]["lr"] = 3e-3
batches = models.text.batches(job.micro_batch, job.seq, seed)
for _ in range(pick(profile, smoke=80, lab=200, full=400)):
    trained.step(*(t.to(here.torch) for t in next(batches)))
start = copy.deepcopy(trained.model.state_dict())  # what is fine-tuned below

tokens, targets = (t.to(here.torch) for t in next(models.text.batches(32, job.seq, seed + 3)))  # [B, T] each
logits = trained.model(tokens)  # [B, T, V]
logits.retain_grad()
loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
loss.backward()
gradient = logits.grad.flatten().cpu()  # [B·T·V], fp32
zero = (gradient.half() == 0).double().mean().item()
some = gradient[:: len(gradient) // 1000]
assert [rounded(g, FP16) for g in some.tolist()] == some.half().float().tolist()
print(f"loss {loss.item():.2f}; {zero:.1%} of the gradient at the logits is zero in fp16, "
      f"{(gradient.bfloat16() == 0).double().mean().item():.1%} in bf16, measured on {here.label}")

# %%
powers = gradient[gradient != 0].abs().frexp().exponent - 1
shares = {int(p): c / gradient.numel() for p, c in zip(*(t.tolist() for t in powers.unique(return_counts=True)), strict=True)}
ranges(f"fp16 ends where this gradient goes on: {zero:.0%} of it becomes zero", [FP32, BF16, FP16, E4M3],
       shares, f"gradient at the logits, {gradient.numel():,} values, measured on {here.label}")

# %% [markdown]
# A derivative is linear: multiply the loss by $S$, and every gradient is multiplied by $S$. With a power of two nothing is rounded, so dividing again gives the same bits. That is *loss scaling*: shift everything to the right before it is squeezed into fp16, shift back in fp32 before the optimizer looks.

# %% tags=["nbval-check-output"]
on_cpu = models.training(small, job, "cpu", seed)
on_cpu.model.load_state_dict(start)


def weight_gradients(scale: float) -> list[torch.Tensor]:
    on_cpu.model.zero_grad()
    (on_cpu.loss(tokens[:4].cpu(), targets[:4].cpu()) * scale).backward()
    return [p.grad / scale for p in on_cpu.model.parameters()]


same = [torch.equal(a, b) for a, b in zip(weight_gradients(1.0), weight_gradients(2.0**16), strict=True)]
print("in fp32, scaled by 2¹⁶ and back: the same bits in", f"{sum(same)} of {len(same)}", "gradients")
assert all(same)

# %% tags=["nbval-ignore-output"]
table = [["scale", "zero", "infinite"]]
for power in (0, 2, 4, 8, 16, 24, 28, 30):
    seen = (gradient * 2.0**power).half()
    table.append([f"2^{power}", f"{(seen == 0).double().mean().item():.2%}", f"{seen.isinf().double().mean().item():.2%}"])
print(columns_text(table))

# %% [markdown]
# There is a window, and nobody knows it beforehand: it depends on model, batch and hour of the training. So the scale is searched while training. Start high. When a gradient comes out infinite or NaN, throw the step away and halve the scale; after many good steps, double it. Here is PyTorch's own `GradScaler` on a tiny network that really computes in fp16, with one batch that is ten thousand times too large. You will write one in exercise 04.3.

# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))  # tiny: fp16 products may be slow on a CPU
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
for step in range(12):
    x, y = torch.randn(8, 8), torch.randn(8, 1) * (1e4 if step == 5 else 1)
    with torch.autocast("cpu", torch.float16):
        loss = (net(x).float() - y).square().mean()
    scaler.scale(loss).backward()
    before = net[0].weight.detach().clone()
    scaler.step(optimizer)
    moved = not torch.equal(before, net[0].weight)
    print(f"step {step:2d}: scale 2^{math.log2(scaler.get_scale()):.0f}, {'stepped' if moved else 'skipped, an overflow'}")
    scaler.update()
    optimizer.zero_grad()

# %% [markdown]
# bf16 needs none of this: its range is fp32's. Wherever both are fast, that is why bf16 has replaced fp16 in training. Its price is the mantissa.
#
# ### bf16: a weight that does not move
# Back to the question. One weight at 1, one hundred updates of 6e-4 each, as a fraction of the weight. Just below 1 the numbers of bf16 are 2⁻⁸ apart: an update smaller than half of that is rounded away, and so is the next, and the next.

# %% tags=["nbval-check-output"]
for f in (BF16, FP32):
    by_bits, seen = 1.0, torch.ones((), dtype=TORCH[f.name])
    for _ in range(100):
        by_bits = rounded(by_bits - rounded(by_bits * 6e-4, FP32), f)
        seen = (seen.float() - seen.float() * 6e-4).to(seen.dtype)
    assert abs(by_bits - seen.item()) < 1e-6
    print(f"{f.name}: after 100 steps {by_bits:.4f}; below 1 an update must exceed {f.epsilon / 4:.2g}")

# %% [markdown]
# AdamW moves each weight by about the learning rate, whatever the gradient's size. So in bf16 a weight larger than the learning rate times 2⁸ to 2⁹ stays where it is. At 1e-5, usual for fine-tuning, that is most weights of most models. The remedy is not a larger rate: it is a place where small changes can add up. Keep a *master copy* in fp32, let the optimizer work on that, and give the model the rounded copy.

# %%
class MasterWeights:
    """Runs an optimizer on fp32 copies of a model's 16-bit weights."""

    def __init__(self, model: nn.Module, build):
        self.weights = list(model.parameters())
        self.masters = [w.detach().float().clone().requires_grad_() for w in self.weights]
        self.optimizer = build(self.masters)

    def step(self) -> None:
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                weight.copy_(master)  # rounded to the nearest; the master keeps the rest

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


# %% [markdown]
# The master costs 4 bytes a parameter. *Stochastic rounding* costs none: round up or down at random, up with the probability that the value's place between its two neighbours gives. A single step is noisier; the mean over steps is right, so one hundred updates of a tenth of a step move a weight by about ten steps. That is exercise 04.4.
#
# ### fp8: a number needs a scale
# e4m3 has eight places between two powers of two and less than eighteen powers of two in all. A tensor whose values lie elsewhere is lost, so an fp8 tensor is a pair: numbers, and a scale that takes the largest of them to 448. Multiply two such tensors, and the scales come out of the sum: $(s_x X)(s_w W) = s_x s_w (XW)$.
#
# One scale for a tensor has an enemy: the outlier. One value that is a thousand times the others takes the range, and the others sink towards zero. So newer formats give a scale to each *block*: MXFP8 and MXFP4 a power of two for 32 neighbours, NVFP4 an e4m3 scale for 16 and one fp32 scale for the tensor. Four bits have no torch cast; the arithmetic of `nearest` stands in.

# %%
def e2m1_by_torch(x: torch.Tensor) -> torch.Tensor:
    """fp32 values as e2m1 holds them: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives."""
    spacing = torch.ldexp(torch.ones_like(x), (x.abs().frexp().exponent - 1).clamp(min=0) - 1)
    return ((x / spacing).round() * spacing).clamp(-6, 6)


def e4m3_by_torch(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def one_scale(x: torch.Tensor, cast, largest: float) -> torch.Tensor:
    scale = x.abs().max() / largest
    return cast(x / scale) * scale


def mx(x: torch.Tensor, cast, highest: int) -> torch.Tensor:
    blocks = x.view(-1, 32)  # [blocks, 32]
    exponent = blocks.abs().amax(1, keepdim=True).frexp().exponent - highest  # to the element's highest power of two
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    return (cast(blocks / scale) * scale).flatten()


# %%
def nvfp4(x: torch.Tensor) -> torch.Tensor:
    blocks, whole = x.view(-1, 16), x.abs().max() / (448 * 6)  # [blocks, 16], fp32 scale of the tensor
    scale = e4m3_by_torch(blocks.abs().amax(1, keepdim=True) / 6 / whole) * whole  # one byte a block
    return (e2m1_by_torch(blocks / scale) * scale).flatten()


def whole_tensor(element):
    return lambda v: scaled(v, element, whole_scale(v, element))


SCHEMES = {  # bits an element, by torch, by bits
    "e4m3, no scale": (8, e4m3_by_torch, lambda v: scaled(v, E4M3, 1.0)),
    "e4m3, one scale": (8, lambda x: one_scale(x, e4m3_by_torch, 448), whole_tensor(E4M3)),
    "e2m1, one scale": (4, lambda x: one_scale(x, e2m1_by_torch, 6), whole_tensor(E2M1)),
    "mxfp8": (MXFP8.bits, lambda x: mx(x, e4m3_by_torch, 9), lambda v: block_scaled(v, MXFP8)),
    "mxfp4": (MXFP4.bits, lambda x: mx(x, e2m1_by_torch, 3), lambda v: block_scaled(v, MXFP4)),
    "nvfp4": (NVFP4.bits, nvfp4, lambda v: block_scaled(v, NVFP4)),
}

# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
plain = torch.randn(1024) * 1e-3  # [1024], gradients, say
spiked = plain.clone()
spiked[500] = 1000 * plain.abs().mean()
table = [["", "bits an element", "relative error", "with one outlier of 1,000 ×"]]
for name, (bits, by_torch_scaled, by_bits) in SCHEMES.items():
    row = []
    for x in (plain, spiked):
        q = by_torch_scaled(x)
        assert q.tolist() == by_bits(x.tolist()), name  # torch and the bits agree, value for value
        others = torch.arange(1024) != 500
        row.append(((q - x)[others].norm() / x[others].norm()).item())
    table.append([name, f"{bits:g}", *(f"{100 * e:.0f} %" for e in row)])
print(columns_text(table))

# %% [markdown]
# Read the last column by the element's range. With a scale, e4m3 survives the outlier: it is a floating-point format and has range to spare. e2m1 with one scale loses everything else: 6 to 0.5 is all it has. Blocks confine the damage to the outlier's neighbours, at a quarter to a half of a bit an element. A product of two scaled tensors, with the sum in fp32:

# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
X, W = torch.randn(32, 256), torch.randn(256, 32) * 0.02  # [M, K], [K, N]
scale_x, scale_w = X.abs().max() / 448, W.abs().max() / 448
X8, W8 = (X / scale_x).to(torch.float8_e4m3fn), (W / scale_w).to(torch.float8_e4m3fn)
Y = (X8.float() @ W8.float()) * (scale_x * scale_w)  # what a scaled fp8 product returns
exact = X.double() @ W.double()
assert [rounded(v, E4M3) for v in (X / scale_x).flatten().tolist()] == X8.float().flatten().tolist()
print(f"fp8 product: {X8.element_size()} byte an element, relative error {((Y - exact).norm() / exact.norm()).item():.0%}")

# %% [markdown]
# ## Measure
# First the 768 weights. One norm and one linear layer fit a fixed target; the three trainings differ in nothing but precision.

# %%
def train_norm(low: bool, master: bool) -> int:
    """100 steps; how many of the norm's 768 weights differ from 1, as the model reads them."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if low else torch.float32
    x, target = torch.randn(64, 768).to(here.torch, dtype), torch.randn(64, 16).to(here.torch)  # [N, H], [N, O]
    model = nn.Sequential(nn.RMSNorm(768), nn.Linear(768, 16, bias=False)).to(here.torch, dtype)
    adamw = functools.partial(torch.optim.AdamW, lr=6e-4)
    optimizer = MasterWeights(model, adamw) if master else adamw(model.parameters())
    for _ in range(100):
        F.mse_loss(model(x).float(), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    if master:  # what the model reads is the master, rounded once
        assert all(torch.equal(w, m.bfloat16()) for w, m in zip(optimizer.weights, optimizer.masters, strict=True))
    return (model[0].weight != 1).sum().item()


moved = {"bf16": train_norm(True, False), "bf16, fp32 master": train_norm(True, True), "fp32": train_norm(False, False)}
assert moved["bf16"] == 0 and moved["fp32"] == 768 and moved["bf16, fp32 master"] > 768 / 2
print("weights moved, of 768: " + ", ".join(f"{name} {count}" for name, count in moved.items()))

# %% [markdown]
# Then a fine-tuning. The small model from above goes on from where it was, on other text, with a learning rate of 3e-5: in fp32, with bf16 autocast, in pure bf16, and in pure bf16 with a master. The chart follows the four in turn; each is evaluated in fp32 on the same held-out batch.

# %% tags=["nbval-ignore-output"]
held_out = [t.to(here.torch) for t in next(models.text.batches(32, job.seq, seed + 7))]  # [32, T] each
steps = pick(profile, smoke=40, lab=60, full=60)
adamw = functools.partial(torch.optim.AdamW, lr=3e-5)


def evaluate(state: dict) -> float:
    trained.model.load_state_dict(state)  # fp32, whatever the precision of `state`
    with torch.no_grad():
        return trained.loss(*held_out).item()


before, after = evaluate(start), {}
with watch("four precisions") as w:
    for name, precision in (("fp32", "fp32"), ("bf16 autocast", "bf16-autocast"), ("bf16", "bf16"),
                            ("bf16, fp32 master", "bf16")):
        tuned = models.training(small, job.but(precision=precision), here.torch, seed)
        tuned.model.load_state_dict(start)
        tuned.optimizer = MasterWeights(tuned.model, adamw) if "master" in name else adamw(tuned.model.parameters())
        first = copy.deepcopy(tuned.model.state_dict())
        batches = models.text.batches(job.micro_batch, job.seq, seed + 5)
        for _ in range(steps):
            tuned.step(*(t.to(here.torch) for t in next(batches)))
            w.step(job.micro_batch)
        after[name] = first, tuned.model.state_dict()

# %% tags=["nbval-ignore-output"]
def moved_share(first: dict, last: dict, norms: bool) -> float:
    """The share of weights that changed, of the norms or of the matrices."""
    names = [name for name in first if name.endswith("weight") and ("norm" in name) == norms]
    return sum((first[n] != last[n]).sum().item() for n in names) / sum(first[n].numel() for n in names)


table = [["", "matrices moved", "norms moved", "held-out loss", "gained"]]
for name, (first, last) in after.items():
    value = evaluate(last)
    table.append([name, f"{moved_share(first, last, False):.0%}", f"{moved_share(first, last, True):.0%}",
                  f"{value:.4f}", f"{before - value:.4f}"])
print(f"{steps} steps at 3e-5 from a held-out loss of {before:.4f}, measured on {here.label}\n\n{columns_text(table)}")

# %% [markdown]
# In pure bf16 the norms stand still and of the matrices only the small weights move. The run logs a loss, spends the same time, and gains a fraction of what the others gain, or nothing. With a master it gains what fp32 gains, although the norms, as the model reads them, stand still there too: so few small steps do not add up to half a step of bf16 at 1. The master has them, and the copy follows when they do.
#
# Last, what precision buys: the rate of a matrix product by dtype, on this device. Where a dtype has no fast kernel the size is kept small, and a note says so.

# %% tags=["nbval-ignore-output"]
rates = measure.ceilings()
rates

# %% [markdown]
# ## Compare

# %% tags=["nbval-ignore-output"]
half_step = {"bf16": BF16.epsilon / 4, "fp32": FP32.epsilon / 4}  # below 1
predicted = {name: 768 if 6e-4 > half else 0 for name, half in half_step.items()}
others = {row["what"]: int(row["moved"]) for row in published("precision")}
source = published("precision")[0]["source"]
seen = (*column("measured", moved, "weights moved", here.label).figures,
        *column("measured", {"zero in fp16": 100 * zero}, "%", here.label).figures)
compare(mine, mine_zero, column("published", others, "weights moved", source=source),
        column("computed", predicted, "weights moved"), Readings("measured", seen, here.label))

# %% [markdown]
# bf16 and fp32 are arithmetic: one update against half a step. The row between them has no closed form. With a master, a weight's *copy* changes once its updates have added up to half a step of bf16, and that depends on how long its gradient keeps its sign. So the published count and the one measured here differ, and both are far from zero. The gradient's share is a measurement of one model at one moment: a better model, or a larger batch, moves it up.

# %% [markdown]
# ## At full size
# Which precision a card is for is decided by what its tensor cores multiply. The vendors' dense peaks:

# %% tags=["nbval-check-output"]
kinds = ["fp32", "tf32", "fp16", "bf16", "fp8"]
table = [["TFLOP/s, published", *kinds, "training in 16 bits"]]
for g in map(gpu, ("t4", "v100", "a100-80", "h100-sxm", "b200")):
    choice = "bf16, no scaling" if "bf16" in g.tflops else "fp16 with a loss scale"
    table.append([g.title, *(f"{g.tflops[k]:g}" if k in g.tflops else "–" for k in kinds), choice])
print(columns_text(table))

# %% [markdown]
# A T4 or V100 multiplies fp16 and not bf16: there it is fp16 with a loss scale. From the A100 on the two run at the same rate, and bf16 does away with the scale. The H100 adds fp8 at twice the rate. What does the step down save in memory? An 8B model, one sequence, everything recomputed, fused AdamW:

# %% tags=["nbval-check-output"]
big = shape("llama-3.1-8b")
base = Job(1, 2048, recompute="full", foreach=False, fused=True)
table = [["llama-3.1-8b, 1 × 2048", "GiB allocated, computed", "a100-80", "h200"]]
for precision in ("fp32", "bf16-autocast", "bf16", "bf16-master"):
    ledger = predict.memory(big, base.but(precision=precision))
    table.append([precision, f"{ledger.peak / GiB:.1f}", ledger.fits("a100-80"), ledger.fits("h200")])
print(columns_text(table))

runs = [row for row in published("memory") if row["case"] == "A02" and row["gpus"] == "8"]
print(f"\npublished: {runs[0]['model']} on {runs[0]['gpus']} × {runs[0]['gpu']}\n{runs[0]['source']}")
print(columns_text([["", "GiB reserved", "tokens/s a GPU"],
                    *([row["technique"], row["gib"], row["tokens_per_second_per_gpu"]] for row in runs)]))
compiled, in_fp8 = ({key: float(row[key]) for key in ("gib", "tokens_per_second_per_gpu")} for row in runs[1:])
print(f"float8 against compile: {in_fp8['tokens_per_second_per_gpu'] / compiled['tokens_per_second_per_gpu'] - 1:+.0%} "
      f"tokens/s, {in_fp8['gib'] - compiled['gib']:+.1f} GiB")

# %% [markdown]
# Two readings. Autocast and the master change nothing in the total: 16 bytes a parameter, differently divided. Only pure bf16 halves it, and only stochastic rounding or luck with the learning rate makes that train. And fp8, in the published run, bought speed and hardly any memory: weights, gradients and moments stay what they were, and fp8 copies live for the length of a product.

# %% [markdown]
# ## Exercises
# ### 04.1 What does it become?
# Each value is cast once, to the nearest number of the format, ties to even. e4m3 saturates. Give the number, exactly; where neighbours lie close together, give how far the result is above the number named: in 256ths for the first two.

# %% tags=["stub"] exercise="04.1"
answer_1 = {
    "1 + 1/256 in bf16, above 1": ...,
    "1 + 3/256 in bf16, above 1": ...,
    "2051 in fp16, above 2048": ...,
    "19 in e4m3": ...,
    "1000 in e4m3": ...,
    "5 in e2m1": ...,
    "2e-8 in fp16": ...,
}

# %% tags=["solution"] exercise="04.1"
answer_1 = {
    "1 + 1/256 in bf16, above 1": 0,  # a tie between 1 and 1 + 2/256; the mantissa of 1 is even
    "1 + 3/256 in bf16, above 1": 4,  # a tie again; 2/256 is the odd place
    "2051 in fp16, above 2048": 4,  # spacing 2 from 2048 on: between 2050 and 2052
    "19 in e4m3": 20,  # spacing 2 from 16 on: between 18 and 20
    "1000 in e4m3": 448,
    "5 in e2m1": 4,  # between 4 and 6, and 4 has mantissa 0
    "2e-8 in fp16": 0,  # below half of the smallest, 2**-25
}

# %% tags=["check"] exercise="04.1"
check("04.1", answer_1)

# %% [markdown]
# ### 04.2 Where a sum stops
# A running sum starts at 0, has the type that is named, and the same number is added to it again and again, for ever. At which value does it stand still? The number that is added is exact.

# %% tags=["stub"] exercise="04.2"
answer_2 = {"fp16, adding 1": ..., "bf16, adding 1/4": ..., "bf16, adding 3": ..., "e4m3, adding 1": ...}

# %% tags=["solution"] exercise="04.2"
def stands_still(f, added: float) -> float:
    total = 0.0
    while rounded(total + added, f) != total:
        total = rounded(total + added, f)
    return total


answer_2 = {"fp16, adding 1": stands_still(FP16, 1.0), "bf16, adding 1/4": stands_still(BF16, 0.25),
            "bf16, adding 3": stands_still(BF16, 3.0), "e4m3, adding 1": stands_still(E4M3, 1.0)}

# %% tags=["check"] exercise="04.2"
check("04.2", answer_2)

# %% [markdown]
# ### 04.3 A dynamic loss scaler
# Write it. `scale` multiplies the loss before backward; `step` is called after backward, divides the gradients by the scale, and takes the optimizer's step if all of them are finite; otherwise it leaves weights and optimizer state as they are. A bad step halves the scale. After `interval` good steps in a row the scale doubles. `step` returns whether it stepped.
#
# On a GPU each look at a tensor's value from Python waits for the device. The check counts those looks: one a step, however many parameters there are.

# %% tags=["stub"] exercise="04.3"
class LossScaler:
    """scale: what the loss is multiplied by. interval: good steps in a row before the scale doubles."""

    def __init__(self, scale: float, interval: int):
        self.scale = scale
        ...

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale the gradients; step, or skip the step; adjust the scale. True when it stepped."""
        ...


# %% tags=["solution"] exercise="04.3"
class LossScaler:
    """scale: what the loss is multiplied by. interval: good steps in a row before the scale doubles."""

    def __init__(self, scale: float, interval: int):
        self.scale, self.interval, self.good = scale, interval, 0

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale the gradients; step, or skip the step; adjust the scale. True when it stepped."""
        weights = [w for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
        for weight in weights:
            weight.grad /= self.scale
        finite = torch.stack([weight.grad.isfinite().all() for weight in weights]).all().item()  # the one look
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            return False
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0
        return True


# %% tags=["check"] exercise="04.3"
check("04.3", LossScaler)

# %% [markdown]
# ### 04.4 Stochastic rounding
# Write a cast from fp32 to bf16 that rounds at random to one of the two neighbours, such that the mean over many draws is the value itself. What bf16 can hold stays as it is. The whole tensor in a few operations, with `generator` as the only source of chance. A hint about bits: bf16 is the upper half of fp32, and a tensor's bits can be read as whole numbers with `x.view(torch.int32)`.

# %% tags=["stub"] exercise="04.4"
def stochastic_bf16(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """fp32 values of any shape as bf16, rounded up or down at random, right in the mean."""
    ...


# %% tags=["solution"] exercise="04.4"
def stochastic_bf16(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """fp32 values of any shape as bf16, rounded up or down at random, right in the mean."""
    noise = torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32)  # 16 random bits below bf16's last
    code = (x.view(torch.int32) + noise) & ~0xFFFF  # carries into the upper half as often as the lower half is large
    return code.view(torch.float32).bfloat16()  # exact: the lower half is zero


# %% tags=["check"] exercise="04.4"
check("04.4", stochastic_bf16)

# %% [markdown]
# ### 04.5 A run that turns to NaN
# This loop trains in fp16. It runs for a while; then a batch with large values comes, and every weight is NaN. That is one of three faults. One batch with large targets teaches nothing, silently; and how fast the model learns depends on the loss scale, which it must not. Mend it. It must still compute its products in fp16, clip the *true* gradient to a norm of 1, skip what cannot be used, and end where an fp32 loop would that leaves the same batches out.
#
# ```python
# def train(model, optimizer, batches, scaler):
#     for x, y in batches:
#         with torch.autocast("cpu", torch.float16):
#             loss = (model(x) - y).square().mean().sqrt()
#         scaler.scale(loss).backward()
#         torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
#         scaler.unscale_(optimizer)
#         optimizer.step()
#         scaler.update()
#         optimizer.zero_grad()
# ```
#
# `scaler` is a `torch.amp.GradScaler`, `x` fp32, `y` fp16.

# %% tags=["stub"] exercise="04.5"
def train(model, optimizer, batches, scaler) -> None:
    """Train on every (x, y) of `batches`, products in fp16, the true gradient clipped to a norm of 1."""
    ...


# %% tags=["solution"] exercise="04.5"
def train(model, optimizer, batches, scaler) -> None:
    """Train on every (x, y) of `batches`, products in fp16, the true gradient clipped to a norm of 1."""
    for x, y in batches:
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        loss = (out.float() - y.float()).square().mean().sqrt()  # the square of 300 is beyond fp16
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before anything looks at the gradients' size
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # which skips what is not finite
        scaler.update()
        optimizer.zero_grad()


# %% tags=["check"] exercise="04.5"
check("04.5", train)

# %% [markdown]
# ### 04.6 Bits for a scale
# The weights of a model of 8 · 10⁹ parameters, for serving. How many bits does an element take with its share of the block's scale, and how many GiB do the weights take? In MXFP8 and MXFP4 32 elements share 8 bits; in NVFP4 16 do (leave out the one fp32 scale of a tensor).

# %% tags=["stub"] exercise="04.6"
answer_6 = {
    "mxfp8, bits": ..., "nvfp4, bits": ...,
    "bf16, GiB": ..., "mxfp8, GiB": ..., "mxfp4, GiB": ..., "nvfp4, GiB": ...,
}

# %% tags=["solution"] exercise="04.6"
elements = 8e9
answer_6 = {
    "mxfp8, bits": 8 + 8 / 32,
    "nvfp4, bits": 4 + 8 / 16,
    "bf16, GiB": elements * 16 / 8 / GiB,
    "mxfp8, GiB": elements * (8 + 8 / 32) / 8 / GiB,
    "mxfp4, GiB": elements * (4 + 8 / 32) / 8 / GiB,
    "nvfp4, GiB": elements * (4 + 8 / 16) / 8 / GiB,
}

# %% tags=["check"] exercise="04.6"
check("04.6", answer_6)

# %% [markdown]
# ### 04.7 A precision for a card
# For each situation, the choice that you would defend:
#
# - **T4**: pre-training a small model on one T4, products dominate
# - **A100**: the same on an A100
# - **A100, no code to change**: an fp32 program on an A100 whose authors accept a setting and nothing else
# - **H100, large products**: pre-training at a size where products take nine tenths of the step, and the recipe has been tried with 8 bits
# - **full bf16 at 1e-5**: fine-tuning where 8 bytes a parameter is all there is room for
# - **laptop**: a CPU for which the library says that bf16 is emulated
#
# And three figures that go with it: how many times the card's fp32 peak the first and the third choice reach, by the table of peaks, and how many bytes a parameter the fifth stores.
#
# The choices: `fp32`, `tf32`, `fp16 + loss scale`, `bf16 autocast`, `bf16 + stochastic rounding`, `fp8`.

# %% tags=["stub"] exercise="04.7"
answer_7 = {
    "T4": ..., "A100": ..., "A100, no code to change": ...,
    "H100, large products": ..., "full bf16 at 1e-5": ..., "laptop": ...,
    "T4, × its fp32 peak": ..., "A100, no code to change, × its fp32 peak": ...,
    "full bf16 at 1e-5, bytes a parameter": ...,
}

# %% tags=["solution"] exercise="04.7"
answer_7 = {
    "T4": "fp16 + loss scale",
    "A100": "bf16 autocast",
    "A100, no code to change": "tf32",
    "H100, large products": "fp8",
    "full bf16 at 1e-5": "bf16 + stochastic rounding",
    "laptop": "fp32",
    "T4, × its fp32 peak": gpu("t4").tflops["fp16"] / gpu("t4").tflops["fp32"],
    "A100, no code to change, × its fp32 peak": gpu("a100-80").tflops["tf32"] / gpu("a100-80").tflops["fp32"],
    "full bf16 at 1e-5, bytes a parameter": 2 + 2 + 2 + 2,  # weight, gradient, two moments
}

# %% tags=["check"] exercise="04.7"
check("04.7", answer_7)

# %% [markdown]
# ### 04.8 What was rounded away?
# A run under fp16 autocast has a loss scale of 1, by mistake. Its loss is finite and falls; then it falls more and more slowly, although fp32 goes on. No gradient was ever infinite. What happens? The loss is a mean over 2,048 tokens, so the gradient at a logit is *p*/2048 where the model gives a wrong word the probability *p*. Up to which *p* does it become exactly zero, with this scale and with 2¹⁰? Give the exponents of two.
#
# - `a`: the weights are stored in fp16 and no longer move
# - `b`: as the model improves, more of the gradient is below the smallest number of fp16 and becomes zero
# - `c`: the optimizer skips the steps in which a gradient overflows
# - `d`: the loss is a mean in fp16, and stands still at a tie

# %%
question("04.8")

# %% tags=["stub"] exercise="04.8"
answer_8 = {"what": ..., "scale 1: p up to 2^": ..., "scale 2^10: p up to 2^": ...}

# %% tags=["solution"] exercise="04.8"
answer_8 = {"what": "b", "scale 1: p up to 2^": -25 + 11, "scale 2^10: p up to 2^": -25 + 11 - 10}

# %% tags=["check"] exercise="04.8"
check("04.8", answer_8)

# %% [markdown]
# ## When it breaks
# You move a notebook to a free T4. It asks `torch.cuda.is_bf16_supported()`, hears `True`, trains in bf16, and is slower than it was in fp32. The answer was not a lie: bf16 *runs* there, by conversions. The call has a keyword, and `including_emulation=False` gives the other answer. A CPU has the same trap: every PyTorch multiplies bf16 matrices, few processors have the instructions.
#
# So ask twice: what the library says, and what a clock says. Here is this device, and then this CPU in a fresh process in which the library may use no instructions for 16 bits, which is what many laptops are. The matrices are tiny, fp16's most of all: without instructions its products are made one element at a time.

# %% tags=["nbval-ignore-output"]
print(sixteen_bit())
print("\nwithout instructions for 16 bits:", without_instructions(), sep="\n")

# %% [markdown]
# A ratio well below 1 is real, well above 1 is emulated, and near 1 the product is too small to tell. Multiply fp16's ratio by the time of a large fp32 product before you start one: it can be a minute a call. Emulated bf16 still halves the bytes, and its numbers are no worse: it is only slow. That is the reason to keep it in a test and out of a run.

# %% [markdown]
# ## Explain it
# Without notes: **which numbers of a training step may be rounded to 16 bits, which to 8, which to neither, and what fails when the wrong one is?** Then:
#
# 1. Why does bf16 need no loss scale, and why does a loss scale not help a bf16 weight that does not move?
# 2. `torch.sum` of a million bf16 ones is right, and your loop over them is not. Where is the difference?
# 3. Autocast was switched on and the peak rose. For which batch does that happen, and what was added?
# 4. A clip of 1.0 was put between `backward()` and `unscale_()`. What does it clip, and how would you see it?
# 5. Why does e4m3 with one scale survive an outlier that ruins e2m1?

# %% [markdown]
# ## Take away
# > **A format is two counts of bits.** The exponent's decide what overflows and vanishes, the mantissa's what an update must exceed.
#
# > **Round the inputs of a product, never the place where small things add up:** accumulators, master weights, reductions.
#
# > **bf16 fails without a message, fp16 with one.** Count the weights that move; count the gradients that are zero.
#
# Reading: *Mixed Precision Training* (Micikevicius et al., 2018); *FP8 Formats for Deep Learning* (2022); the OCP *Microscaling Formats* specification; DeepSeek-V3's technical report, section 3.3. Next: 05, where gradients of many small batches add up to a large one.
