# %% [markdown]
# # 06 · KV cache and serving
#
# What a token costs once it has been read: bytes in a cache, a place in a batch, and somebody else's waiting time.
#
# **Minutes** 90 · **Hardware** cpu, gpu · **Needs** 01, 02
#
# After this lesson you can
#
# - decode with a cache, prove that nothing changed, and say what its bytes are;
# - tell prefill from decode by their FLOPs a byte, and say what a larger batch does to each;
# - manage a cache in blocks, and decide who may start;
# - read p50, p95 and p99 of a server, and choose its batch by them;
# - say how many requests a card holds, and what happens to the one beyond.

# %%
import statistics
from types import SimpleNamespace

import torch

from gpucourse import check, compare, guess, hint, measure, models, predict, question, solution, watch
from gpucourse.catalog import GiB, Job, KiB, gpt, gpu, llama, pick, published, seconds_text, shape
from gpucourse.evidence import Figure, Readings, column, columns_text
from gpucourse.live.roofline import roofline
from gpucourse.live.serving import batches, queue
from gpucourse.measure.turns import in_turn
from gpucourse.models import decoding
from gpucourse.predict.admission import greedy, reserving
from gpucourse.predict.inference_time import decode_seconds, prefill_seconds
from gpucourse.predict.kv_cache import admitted, blocks, concurrency, kv_bytes_per_token
from gpucourse.predict.paging import BlockPool, blocks_for
from gpucourse.predict.requests import Request, drawn
from gpucourse.predict.served import between
from gpucourse.predict.serving import plan
from gpucourse.predict.simulation import simulate

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke, lab or full
world_size: int = 0  # not used by this lesson
seed: int = 0  # of the weights, the text and the requests

# %% [markdown]
# ## The question
# An 8B model in bf16 leaves a third of a 24 GB card free. You send it a request, and the answer comes at a good pace. Then fifty people use it at once. For some the first word takes a minute. Others see an answer begin, stop in the middle and go on later. The GPU's utilisation is high throughout, no error is logged, and the weights have not grown by a byte.

# %% tags=["nbval-check-output"]
big, small_card = shape("llama-3.1-8b"), gpu("rtx-4090")
loaded = 2 * predict.parameters(big).total
print(f"{big.name}: {loaded / GiB:.1f} GiB of bf16 weights on a card of {small_card.capacity_gib:.1f} GiB")

# %% [markdown]
# What fifty requests have that one has not is fifty conversations to remember. Training keeps activations until the backward pass takes them; a server keeps keys and values until the *person* has their answer.

# %% [markdown]
# ## Predict
# A small model of the same family runs below. First it answers one request twice: once computing everything again for each token, once keeping what it can. Then it answers one request at a time, and thirty-two together. Write down two ratios.

# %%
here = measure.device()
served = pick(profile,
              smoke=llama("served", 4, 512, 8, 2, 1408, vocab=256, context=512),
              lab=llama("served", 4, 640, 10, 2, 1760, vocab=256, context=512),
              full=llama("served", 16, 2048, 32, 8, 5632, vocab=256, context=1024))
prompt_length, answer_length = pick(profile, smoke=(128, 32), lab=(128, 48), full=(256, 256))
print(f"{predict.parameters(served).total:,} parameters in fp32; {prompt_length} tokens given, {answer_length} answered")

# %%
mine = guess("06.g1", {"time without a cache / with": ..., "tokens/s, 32 requests / 1": ...}, "×")

# %% [markdown]
# And one number for the situation above: an 8B model (`llama-3.1-8b`, weights and cache in bf16) on a card with 24 GB. How many requests of 2,000 tokens, prompt and answer together, does its cache hold at once?

# %%
mine_requests = guess("06.g2", {"8B on a 24 GB card": ...}, "requests")

# %% [markdown]
# ## Mechanism
# ### What a new token needs of the old ones
# One head, six tokens. Attention gives each token a mean of the values of the tokens up to it, weighted by how its query meets their keys. Look at the last row: it takes one query, all keys, all values. No other query occurs in it.

# %% tags=["nbval-check-output"]
torch.manual_seed(seed)
size, context = 8, 6
x = torch.randn(context, size, dtype=torch.float64)  # [T, H]
wq, wk, wv = torch.randn(3, size, size, dtype=torch.float64)  # [H, H] each
q, k, v = x @ wq, x @ wk, x @ wv  # [T, H] each
seen = torch.ones(context, context, dtype=torch.bool).tril()
whole = (q @ k.T / size**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v  # [T, H]

keys, values, rows = [], [], []
for token in x:  # [H]: one at a time, as they are generated
    keys.append(token @ wk)
    values.append(token @ wv)
    weights = (torch.stack(keys) @ (token @ wq) / size**0.5).softmax(0)  # [tokens so far]
    rows.append(weights @ torch.stack(values))
assert torch.allclose(torch.stack(rows), whole, rtol=0, atol=1e-12)
print("the same rows, with each token's key and value computed once")

# %% [markdown]
# Keys and values of the past do not change, because nothing before a token can see it. So they can be kept: that is the **KV cache**. Everything else in the network (norms, projections, MLP) works on one token at a time and needs no memory of the others.
#
# The whole network, then: `decoding.generate` without a cache passes all tokens through it for each new one; with a cache, only the new one. It must say the same. In fp64 the two are compared to the last digits, so that a difference would be a fault and not a rounding.

# %% tags=["nbval-check-output"]
styles = {"GPT-2 style, 8 heads": gpt("a", 3, 64, 8, vocab=256, context=128),
          "Llama style, 8 heads share 2": llama("b", 3, 64, 8, 2, 160, vocab=256, context=128)}
prompt = next(models.text.batches(2, 40, seed))[0]  # [B, T]
for name, style in styles.items():
    torch.manual_seed(seed)
    model = models.Transformer(style).double().eval()
    cache = decoding.cache(model, batch=2, tokens=100)
    said = decoding.generate(model, prompt, 50, cache)  # [B, 50]
    assert torch.equal(said, decoding.generate(model, prompt, 50))
    with torch.no_grad():
        apart = model(torch.cat([prompt, said], 1))[:, -1] - decoding.step(model, said[:, -1:], cache)
    assert apart.abs().max() < 1e-12
    print(f"{name}: the same {said.numel()} tokens, logits equal to 1e-12")

# %% [markdown]
# In fp32 or bf16 the logits differ in their last digits, since a product of one row is summed in another order than a product of many. Where two tokens are almost equally likely, that can turn one into the other. A server whose answers change with its load is not broken by that alone.
#
# ### How much work is saved, and how much is not
# Without a cache the $i$-th new token costs a pass over the prompt and the $i$ before it. With a cache each token passes once.

# %% tags=["nbval-check-output"]
def tokens_passed(prompt: int, new: int, cached: bool) -> int:
    return prompt + new - 1 if cached else sum(prompt + i for i in range(new))


for new in (16, 64, 256, 1024):
    again, once = tokens_passed(64, new, False), tokens_passed(64, new, True)
    print(f"64 given, {new:5,} answered: {again:8,} tokens pass without a cache, {once:5,} with: {again / once:5.1f} ×")

# %% [markdown]
# It is often said that the cache makes generation "linear instead of quadratic". The passes through weights, yes. Attention itself still reads the whole cache for each token, so its part stays quadratic; it only starts from a small coefficient.
#
# ### What it costs in bytes
# Two tensors a layer, one row a token and head. Only the heads that *have* keys count: where several query heads share one (grouped-query attention, GQA), the cache shrinks by that factor.
#
# $$\text{bytes a token} = 2 \cdot \text{layers} \cdot \text{kv heads} \cdot \text{head size} \cdot \text{bytes an element}$$

# %% tags=["nbval-check-output"]
table = [["4 layers, 8 heads of 64", "bytes a token, computed", "32 × 100 tokens, computed", "counted"]]
for kv_heads in (8, 2, 1):
    style = llama("c", 4, 512, 8, kv_heads, 64, vocab=256, context=128)
    cache = decoding.cache(models.Transformer(style), batch=32, tokens=100)
    each = kv_bytes_per_token(style, "fp32")
    assert cache.nbytes == 32 * 100 * each == 32 * 100 * 2 * 4 * kv_heads * 64 * 4
    table.append([f"{kv_heads} kv heads", f"{each:,}", f"{32 * 100 * each:,}", f"{cache.nbytes:,}"])
print(columns_text(table))

# %% [markdown]
# ### Two kinds of work in one server
# A prompt goes through the network at once: many tokens share each weight that is read. That is **prefill**. Then each step reads all weights again for one token a request: **decode**. What a batch shares is the weights. What it does not share is the cache: each request reads its own.
#
# $$\frac{\text{FLOPs}}{\text{byte}} = \frac{b\,(2N + 4\,L\,h\,s)}{\text{weights} + b \cdot s \cdot \text{KV}}$$
#
# for a decode step of $b$ requests that each hold $s$ tokens. With $b \to \infty$ it does not grow without end: it tends to a bound that the *model* sets, $(2N + 4Lhs)/(s\,\text{KV})$.

# %% tags=["nbval-check-output"]
def intensity(model, b: int, s: float, each: float, new: int = 1, bytes_weight: int = 2) -> float:
    """FLOPs a byte when b requests pass `new` tokens each, seeing s tokens on average; `each`: KV bytes a token."""
    count = predict.parameters(model).total
    flops = b * new * (2 * count + 4 * model.layers * model.hidden * s)
    return flops / (bytes_weight * count + b * max(s, new) * each)


h100 = gpu("h100-sxm")
kv = kv_bytes_per_token(big)
turn = h100.peak("bf16") / h100.bandwidth
table = [["8B in bf16", "200 tokens held", "2,000", "20,000"]]
for b in (1, 16, 256, 10**6):
    table.append([f"decode, batch {b:,}", *(f"{intensity(big, b, s, kv):.3g}" for s in (200, 2000, 20_000))])
table.append(["prefill of 2,000 tokens", "", f"{intensity(big, 1, 1000, kv, new=2000):,.0f}", ""])
print(columns_text(table))
print(f"\n{h100.title} turns from memory to compute at {turn:.0f} FLOPs a byte (published rates)")

# %% [markdown]
# "Serving is memory-bound; raise the batch until it is not" is right for short contexts only. With long ones each request brings so much cache of its own that no batch, however large, reaches the turn: then only smaller keys and values help (fewer kv heads, fewer bytes), not more requests.
#
# ### Blocks
# How long an answer will be is not known when it begins. A server that reserves the longest allowed length for each request, in one piece, keeps most of its cache for tokens that never come. Give out **blocks** of 16 tokens instead, from one pool, as they are needed, and keep for each request a table of its blocks. A request then wastes less than one block, and any free block serves anyone.

# %% tags=["nbval-check-output"]
pool = BlockPool(count=10, block_size=16)
pool.grow("A", 40)
pool.grow("B", 20)
pool.grow("A", 25)  # A goes on: its next blocks need not lie beside the first
print(pool.tables, "· places taken and empty:", pool.wasted)
pool.release("B")
print("C wants 80 tokens:", pool.grow("C", 80), pool.tables, "· free:", len(pool.free))

crowd = drawn(200, 1.0, (16, 128), (16, 384), seed=1)
used = sum(r.prompt + r.answer for r in crowd)
paged = 16 * sum(blocks_for(r.prompt + r.answer, 16) for r in crowd)
table = [["200 requests at their ends", "places", "more than tokens"], ["tokens", f"{used:,}", ""]]
for name, places in {"in blocks of 16": paged, "reserved for the longest allowed": 200 * 512}.items():
    table.append([name, f"{places:,}", f"{places / used - 1:.1%}"])
print(columns_text(table))

# %% [markdown]
# ### Who may start, and who must stop
# A block may be missing in the middle of an answer. Then somebody loses theirs: the request that started last is **pre-empted**, its blocks are freed, and when it returns its prompt and all it has said are prefilled again. Three requests with room for five blocks, followed by hand; a prefill takes 1 s a token here, a decode step 1 s and 1 s a request.

# %% tags=["nbval-check-output"]
def prefill_by_hand(tokens: int) -> float:
    return 1.0 * tokens


def decode_by_hand(requests: int) -> float:
    return 1.0 + requests


three = [Request(0, 2, 4), Request(0, 2, 4), Request(1, 2, 2)]  # arrival, prompt, answer
for rule in (greedy, reserving):
    run = simulate(three, prefill_by_hand, decode_by_hand, batch=3, blocks=5, block_size=2, admit=rule)
    print(f"{rule.__name__}: done after {run.seconds:.0f} s, pre-emptions: {run.preemptions}, "
          f"tokens computed again: {run.computed_again}")
    for t in run.turns:
        what = f"prefill {t.prefilled}" if t.prefilled else "decode"
        print(f"  {t.begin:2.0f} … {t.end:2.0f} s  {what:10s} running {t.running}  waiting {t.waiting}  "
              f"blocks {t.blocks}" + "  pre-empted 1" * t.preempted)

# %% [markdown]
# `greedy` lets in whoever fits at this moment. `reserving` lets in whoever fits *to the end* beside all who run. The first fills the cache and pays with work done twice; the second leaves blocks empty and never goes back. Which is better is a question of numbers, and below there are some.
#
# ### Fewer bytes an element
# Store a key as 8-bit integers and one scale: half the bytes of bf16, and a little more for the scale. A number is then off by at most half a step of *its* scale, so it matters how many numbers share one.

# %% tags=["nbval-check-output"]
def quantise(x, bits: int, dims):
    """Integers of `bits` bits, and one scale for all numbers along `dims`. x: [B, K, T, D]."""
    top = 2 ** (bits - 1) - 1
    scale = (x.abs().amax(dims, keepdim=True) / top).clamp(min=1e-12)
    return (x / scale).round(), scale


torch.manual_seed(seed)
k = torch.randn(2, 4, 100, 64)  # [B, K, T, D]
k[0, 0, 50] *= 30  # one large token: the first of a text often is
table = [["", "error, one scale a token and head", "one scale for all", "bytes a token and head, bf16 scale"]]
for bits in (8, 4, 2):
    errors = []
    for dims in (-1, (0, 1, 2, 3)):
        q, scale = quantise(k, bits, dims)
        ordinary = torch.ones(100, dtype=torch.bool).index_fill(0, torch.tensor(50), False)
        off = (q * scale - k)[:, :, ordinary]
        errors.append(f"{(off.norm() / k[:, :, ordinary].norm()).item():.1%}")
    table.append([f"{bits} bits", *errors, f"{64 * bits // 8} + 2, of {64 * 2}"])
print(columns_text(table))

# %% [markdown]
# ## Measure
# The ceilings of this machine first, in the same run as what is held against them.

# %% tags=["nbval-ignore-output"]
rates = measure.ceilings()
rates

# %% [markdown]
# One request, with and without a cache, in turn. The weights are random: a product takes as long whatever is in it.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(seed)
model = models.Transformer(served).to(here.torch).eval()
prompt = torch.randint(256, (1, prompt_length), device=here.torch)  # [1, T]


def with_cache():
    decoding.generate(model, prompt, answer_length, decoding.cache(model, 1, prompt_length + answer_length))


cache_ratio = measure.alternate(lambda: decoding.generate(model, prompt, answer_length), with_cache, rounds=3,
                                names=("answering without a cache", "with one"))
print(cache_ratio)

# %% [markdown]
# Then the two prices that a server pays: a decode step by the number of requests in it, and a prefill by its tokens. These are the only clocks that the simulation below will have. A decode step is timed as one of four in a row, as it comes in use. All are timed in turn, round after round, so that a busy moment of the machine hits each of them; and beside them eight whole answers, for a comparison later.

# %%
held = (prompt_length + answer_length) // 2  # tokens that each request of a decode step holds
eight = torch.randint(256, (8, 32), device=here.torch)  # [8, T]: prompts of 32 tokens


def passing(batch: int, past: int, new: int, times: int = 1):
    """A call that passes `new` tokens of each of `batch` requests that hold `past` tokens, `times` times."""
    cache = decoding.cache(model, batch, past + times * new)
    tokens = torch.randint(256, (batch, new), device=here.torch)

    def call():
        cache.length = past
        for _ in range(times):
            decoding.step(model, tokens, cache)
    return call


# %% tags=["nbval-ignore-output"]
calls = {f"decode {b}": passing(b, held, 1, times=4) for b in (1, 2, 4, 8, 16, 32)}
calls |= {f"prefill {b}": passing(b, 0, 32) for b in (1, 4, 16)}
calls["eight answered"] = lambda: decoding.generate(
    model, eight, answer_length, decoding.cache(model, 8, 32 + answer_length))
took = {name: statistics.median(seconds) for name, seconds in in_turn(calls, rounds=5).items()}
decode_points = {b: took[f"decode {b}"] / 4 for b in (1, 2, 4, 8, 16, 32)}
prefill_points = {b * 32: took[f"prefill {b}"] for b in (1, 4, 16)}
later = decode_points[32] / decode_points[1]
batches(f"32 requests in a step: {32 / later:.1f} × the tokens a second, each in {later:.1f} × the time", decode_points,
        f"one decode step, {held} tokens held by each request, measured on {here.label}")

# %% [markdown]
# Now a model that has learnt a little, so that its keys and values are not noise, trained as in lesson 01 and watched.

# %% tags=["nbval-ignore-output"]
talker = llama("talker", 3, 192, 6, 2, 512, vocab=256, context=256)
training = models.training(talker, Job(8, 64), here.torch, seed)
losses, text = [], models.text.batches(8, 64, seed)
with watch("a model to be served") as w:
    for _ in range(pick(profile, smoke=40, lab=100, full=400)):
        losses.append(training.step(*(t.to(here.torch) for t in next(text))).item())
        w.step(8)
talking = training.model.eval()
del training

# %% [markdown]
# It is prefilled with 128 tokens of 32 texts, its cache is rounded, and it decodes 16 tokens that it is given, so that every variant is asked the same. What changes in its logits, and how often in the most likely token?

# %% tags=["nbval-ignore-output"]
texts = next(models.text.batches(32, 144, seed + 1))[0].to(here.torch)  # [32, 144]


def logits_after(change):
    """Logits [32, 16, V] of the last 16 tokens, over a cache of the first 128 that went through `change`."""
    cache = decoding.cache(talking, 32, 144)
    decoding.step(talking, texts[:, :128], cache)
    cache.keys, cache.values = [change(k) for k in cache.keys], [change(v) for v in cache.values]
    return torch.stack([decoding.step(talking, texts[:, t:t + 1], cache) for t in range(128, 144)], dim=1)


exact = logits_after(lambda tensor: tensor)
table = [["cache, one scale a token and head", "KiB a token, fp32 scales", "logits off by", "same next token"]]
table.append(["fp32", f"{kv_bytes_per_token(talker, 'fp32') / KiB:.2f}", "0", "100.0%"])
for bits in (8, 4, 2):
    rounded = logits_after(lambda tensor: torch.mul(*quantise(tensor, bits, -1)))
    vectors = 2 * talker.layers * talker.kv_heads  # a token: keys and values, each with its scale
    same = (rounded.argmax(-1) == exact.argmax(-1)).float().mean()
    table.append([f"{bits} bits", f"{vectors * (talker.head_size * bits / 8 + 4) / KiB:.2f}",
                  f"{((rounded - exact).norm() / exact.norm()).item():.2%}", f"{same.item():.1%}"])
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}\n\n" + columns_text(table) + f"\n\nmeasured on {here.label}")

# %% [markdown]
# Eight bits cost hardly anything here. What two bits do to this model says little about a large one that really uses a long context, with a few channels far larger than the rest: measure yours, on its own task, at its own length.

# %% [markdown]
# ## Compare
# The computed column knows three things: how many tokens pass, this machine's rate for large fp32 products and its rate for a large copy. A pass takes what the roofline says: its FLOPs, or the reading of the weights, whichever is longer; a decode step reads each request's cache besides.

# %%
flops, bandwidth = rates.flops["fp32"], rates.bandwidth["copy, large"]
count = predict.parameters(served).total


def pass_computed(tokens: int) -> float:
    return max(2 * count * tokens / flops, 4 * count / bandwidth)


step = {b: decode_seconds(served, b, held, flops, bandwidth, "fp32", "fp32") for b in (1, 32)}
without = sum(pass_computed(prompt_length + i) for i in range(answer_length))
with_one = pass_computed(prompt_length) + (answer_length - 1) * step[1]
work = tokens_passed(prompt_length, answer_length, False) / tokens_passed(prompt_length, answer_length, True)
CACHE, BATCH, HOLDS = "time without a cache / with", "tokens/s, 32 requests / 1", "8B on a 24 GB card"
expected = {CACHE: without / with_one, BATCH: 32 * step[1] / step[32], "tokens passed without a cache / with": work}
found = {CACHE: cache_ratio.value, BATCH: 32 * decode_points[1] / decode_points[32]}
on_24 = plan(big, small_card, context=2000)

# %% tags=["nbval-ignore-output"]
predicted = (*column("computed", expected, "×").figures, Figure(HOLDS, on_24.max_concurrency, "requests", "computed"))
compare(mine, mine_requests, Readings("computed", predicted), column("measured", found, "×", here.label))

# %% [markdown]
# Set the time beside the tokens passed. The cache saves far more *work* than time: a pass over many tokens is prefill, near the compute roof, while a decode step reads all weights for a single token and does almost nothing with them. The cache removes the cheap kind of work and leaves the dear kind, and the more so the better the hardware multiplies. Below the turn of the roofline a pass over a hundred tokens takes as long as a pass over one: there a short text gains nothing.
#
# What is left between computed and measured has the reasons of lesson 02. Launching operations takes time that no roofline contains; a product of a few rows reaches neither ceiling; weights that fit a processor's cache are read faster than the copy says; and whatever else runs on this machine runs in one of the two moments.
#
# Where the two kinds of work lie under this run's own roof:

# %% tags=["nbval-ignore-output"]
each = kv_bytes_per_token(served, "fp32")
points = {}
for b in (1, 8, 32):
    work = b * (2 * count + 4 * served.layers * served.hidden * held)
    points[f"decode, {b} request{'s' * (b > 1)}"] = (intensity(served, b, held, each, 1, 4), work / decode_points[b])
for tokens in (32, 512):
    work = tokens * (2 * count + 4 * served.layers * served.hidden * 32 / 2)  # 32 a prompt: a token sees half of them
    points[f"prefill, {tokens} tokens"] = (work / (4 * count + tokens * each), work / prefill_points[tokens])
apart = points["prefill, 512 tokens"][0] / points["decode, 1 request"][0]
roofline(f"The same weights: a prefill of 512 tokens does {apart:.0f} × the FLOPs a byte of a decode step", points,
         flops, bandwidth, f"fp32, roofs and operations measured on {here.label}")

# %% [markdown]
# A point above the slope means that the weights came from a cache that is faster than the memory behind it.
#
# ### Does the simulation tell the truth?
# One case was run and timed whole, in the same rounds: eight requests that arrive together and are answered together. The simulation is given the two measured prices and nothing else.

# %% tags=["nbval-ignore-output"]
prefill, decode = between(prefill_points), between(decode_points)  # seconds of a number of tokens, of requests
together = [Request(0, 32, answer_length)] * 8
played = simulate(together, prefill, decode, batch=8, blocks=1000)
compare(column("simulated", {"8 requests, answered": 1e3 * played.seconds}, "ms"),
        column("measured", {"8 requests, answered": 1e3 * took["eight answered"]}, "ms", here.label))

# %% [markdown]
# What the simulation leaves out: a decode step grows with the tokens held, and was measured at one length; sampling, tokenising and the network cost nothing; and nobody hangs up.
#
# ### A server under load
# People arrive at random, with prompts and answers of all lengths, at nine tenths of the rate that this machine could just keep up with at a batch of 16. One row for each limit on how many may run at once; `wait` is the time to the first token, `pace` the time of each further one.

# %% tags=["nbval-ignore-output"]
seconds_each = prefill(72) + 56 * decode(16) / 16  # of a request of mean length: its prefill, its share of the steps
arrivals = drawn(150, 0.9 / seconds_each, (16, 128), (16, 96), seed)
caps = (1, 2, 4, 8, 16, 32)


def serve(cap: int, refill: bool = True):
    return simulate(arrivals, prefill, decode, cap, blocks=1000, admit=reserving, refill=refill)


runs = {str(cap): serve(cap) for cap in caps} | {"16, static": serve(16, refill=False)}
table = [["at most", "tokens/s", "wait p50", "p95", "p99", "pace p50", "p95", "p99", "latency p99"]]
for name, run in runs.items():
    times = [run.at(what, p) for what in ("wait", "pace") for p in (50, 95, 99)] + [run.at("latency", 99)]
    table.append([name, f"{run.tokens_per_second:,.0f}", *map(seconds_text, times)])
print(columns_text(table) + f"\n\nsimulated, on step times measured on {here.label}")

# %% [markdown]
# Read it column by column. With a small limit the machine is not slow: the *queue* is, and the wait is the time of others. With a large one nobody queues and each answer is slower, because more requests share each step. Between them lies the choice, and the percentile decides: p50 is what most requests see, p99 what one in a hundred does. Whoever needs ten requests for one page meets that one on every tenth page.
#
# The last row starts a new batch only when the whole of the old one is done (**static batching**). Short answers then wait for long ones with their places empty. Refilling places one by one is **continuous batching**, and most of what serving engines gained came from it.

# %% [markdown]
# ## At full size
# ### What a card holds
# 8B in bf16 on three cards: what the weights and a reserve for activations leave, how many tokens that is, how many requests. `uncertain` means that it depends on the reserve, which depends on the prompts.

# %% tags=["nbval-check-output"]
table = [["8B, 90 % of the card, computed", "cache of", "GiB", "tokens", "÷ 2,000", "÷ 32,000",
          "50 × 2,000 fit", "1 × 32,000 fits"]]
for card in (small_card.name, "l40s", "h100-sxm"):
    for kv_dtype in ("bf16", "fp8"):
        p = plan(big, gpu(card), 2000, kv_dtype=kv_dtype)
        fifty, long = (plan(big, gpu(card), s, n, kv_dtype=kv_dtype).fits for s, n in ((2000, 50), (32_000, 1)))
        table.append([gpu(card).title, kv_dtype, f"{p.kv_bytes / GiB:.1f}", f"{p.kv_tokens:,}",
                      f"{p.max_concurrency:.1f}", f"{concurrency(p.kv_tokens, 32_000):.1f}", fifty, long])
print(f"{columns_text(table, left=2)}\n\nweights: {p.weight_bytes / GiB:.1f} GiB on each")

# %% [markdown]
# There is the answer to the question at the top. Doubling the card's memory multiplies the cache by far more than two, because the weights are paid once.
#
# ### Three servers' logs, recomputed
# What others' servers printed, and the formula with their configuration. The second log prints GB and means GiB, which the arithmetic shows.

# %% tags=["nbval-check-output"]
log = {(r["case"], r["what"], r["quantity"]): float(r["value"]) for r in published("serving")}
qwen, seven = shape("qwen3-235b"), shape("qwen2.5-7b")
kv_qwen = kv_bytes_per_token(qwen, tensor=4)
rows = []
for longest in (20_000, 29_000):
    where = f"longest request {longest}"
    count_blocks = blocks(log["A16", where, "cache"] * GiB, kv)
    rows += [(("A16", where, "blocks"), count_blocks),
             (("A16", where, "requests at once"), concurrency(16 * count_blocks, longest))]
rows += [(("A19", "one engine", "tokens"), 16 * blocks(log["A19", "one engine", "cache"] * GiB, kv_qwen)),
         (("A19", "another engine", "keys alone"), log["A19", "another engine", "tokens"] * kv_qwen / 2 / GiB)]
runnable = admitted(int(log["C27", "full server", "tokens"]), 1070)
rows += [(("C27", "full server", "requests that ran"), runnable),
         (("C27", "full server", "requests that waited"), log["C27", "full server", "requests let in"] - runnable)]
table = [["", "", "", "published", "computed", "off"]]
table += [[*key, f"{log[key]:,.6g}", f"{value:,.6g}", f"{value / log[key] - 1:+.1%}"] for key, value in rows]
print(columns_text(table, left=3) + "\n")
print("\n".join(dict.fromkeys(f"{r['case']}: {r['source']}" for r in published("serving"))))

# %% [markdown]
# A16 is refused at a longest request of 29,000 because the cache holds less than one of them. A19's four kv heads sit one on each of four GPUs: eight GPUs would not halve a token's bytes again, they would hold the heads twice.
#
# ### What a step costs there
# The same decode step as above, by the vendors' published rates, 8B in bf16, 2,000 tokens held by each request. Each row ends at the largest batch that the card's cache holds.

# %% tags=["nbval-check-output"]
table = [["computed", "requests", "ms a step", "tokens/s", "read: weights", "read: cache"]]
for card in map(gpu, ("rtx-4090", "l40s", "h100-sxm")):
    most = int(plan(big, card, 2000).max_concurrency)
    for b in sorted({1, most}):
        seconds = decode_seconds(big, b, 2000, card.peak("bf16"), card.bandwidth)
        weights_gib = 2 * predict.parameters(big).total / GiB
        table.append([card.title, f"{b}", f"{1e3 * seconds:.1f}", f"{b / seconds:,.0f}", f"{weights_gib:.1f} GiB",
                      f"{b * 2000 * kv / GiB:.1f} GiB"])
print(columns_text(table))

# %% [markdown]
# ## Exercises
# ### 06.1 Bytes a token
# How large is the cache in bf16: of one token, for `llama-2-7b`, `llama-3.1-8b` and `qwen3-235b` (see `shape("…")`; the heads of the last are 128 wide), the last on each of 4 and of 8 GPUs that divide the heads among them; and of fifty requests of 2,000 tokens for `llama-3.1-8b`? Work it out with the formula before you call a function that knows it.

# %% tags=["stub"] exercise="06.1"
answer_1 = {
    "llama-2-7b, KiB a token": ...,
    "llama-3.1-8b, KiB a token": ...,
    "qwen3-235b on 4 GPUs, KiB a token and GPU": ...,
    "qwen3-235b on 8 GPUs, KiB a token and GPU": ...,
    "llama-3.1-8b, 50 requests of 2,000 tokens, GiB": ...,
}

# %% tags=["solution"] exercise="06.1"
answer_1 = {
    "llama-2-7b, KiB a token": 2 * 32 * 32 * 128 * 2 / KiB,  # every head has its own keys
    "llama-3.1-8b, KiB a token": 2 * 32 * 8 * 128 * 2 / KiB,  # 32 heads share 8
    "qwen3-235b on 4 GPUs, KiB a token and GPU": 2 * 94 * 1 * 128 * 2 / KiB,  # one of 4 heads each
    "qwen3-235b on 8 GPUs, KiB a token and GPU": 2 * 94 * 1 * 128 * 2 / KiB,  # a head is not cut: each is held twice
    "llama-3.1-8b, 50 requests of 2,000 tokens, GiB": 50 * 2000 * 2 * 32 * 8 * 128 * 2 / GiB,
}

# %% tags=["check"] exercise="06.1"
check("06.1", answer_1)

# %% [markdown]
# ### 06.2 A layer's attention with a cache
# Write the attention of one layer for new tokens over what is kept of the old ones. `attention` is the model's own layer, with `q`, `k`, `v`, `out` and `head_size`; `rotary` holds cos and sin for *all* positions, `[S, D]` each, and `models.transformer.rotate(x, cos, sin)` applies rows of them. `kept` is `None` at first, later what you returned: keys and values of all tokens so far, `[B, kv heads, tokens, D]` each. Several tokens may come at once, with or without a past. Every token passes through the projections once.

# %% tags=["stub"] exercise="06.2"
def attend(attention, x, rotary, kept):
    """x: [B, T, H], the new tokens. Returns (y [B, T, H], (keys, values))."""
    ...


# %% tags=["solution"] exercise="06.2"
def attend(attention, x, rotary, kept):
    """x: [B, T, H], the new tokens. Returns (y [B, T, H], (keys, values))."""
    B, T, _ = x.shape
    past = 0 if kept is None else kept[0].shape[2]
    q, k, v = (project(x).view(B, T, -1, attention.head_size).transpose(1, 2)  # [B, heads, T, D]
               for project in (attention.q, attention.k, attention.v))
    cos, sin = (table[past:past + T] for table in rotary)
    q, k = models.transformer.rotate(q, cos, sin), models.transformer.rotate(k, cos, sin)
    if kept is not None:
        k, v = torch.cat([kept[0], k], dim=2), torch.cat([kept[1], v], dim=2)  # [B, kv heads, past + T, D]
    allowed = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)  # token t sees past + t + 1 keys
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
    return attention.out(y.transpose(1, 2).reshape(B, T, -1)), (k, v)


# %% tags=["check"] exercise="06.2"
check("06.2", attend)

# %% [markdown]
# ### 06.3 A block allocator
# Write the one operation that it needs. `free` is the list of free blocks, in any order; `table` the list of blocks that a sequence holds, in the order of its tokens; `length` the tokens it has. Make room for `tokens` more: move blocks from `free` to the end of `table` and return `True`. Where too few are free, change nothing and return `False`. A sequence never holds a block that it does not need.

# %% tags=["stub"] exercise="06.3"
def grow(free: list[int], table: list[int], length: int, tokens: int, block_size: int) -> bool:
    """Room for `tokens` more of a sequence of `length` tokens: True, or False and nothing changed."""
    ...


# %% tags=["solution"] exercise="06.3"
def grow(free: list[int], table: list[int], length: int, tokens: int, block_size: int) -> bool:
    """Room for `tokens` more of a sequence of `length` tokens: True, or False and nothing changed."""
    missing = -(-(length + tokens) // block_size) - len(table)  # the quotient rounded up, less what it has
    if missing > len(free):
        return False
    for _ in range(missing):
        table.append(free.pop())
    return True


# %% tags=["check"] exercise="06.3"
check("06.3", grow)

# %% [markdown]
# ### 06.4 Admission control
# Write the rule that decides how many from the front of the queue may start, such that nobody is ever pre-empted and no place stays empty that could be used. `waiting` and `running` are lists of requests with `prompt`, `answer` and `done` (tokens of the answer that exist already; a waiting one can have some). The cache has `blocks` blocks in all. First come, first served. Your rule then runs a simulated server.

# %% tags=["stub"] exercise="06.4"
def admit(waiting, running, blocks: int, block_size: int) -> int:
    """How many from the front of `waiting` may start now."""
    ...


# %% tags=["solution"] exercise="06.4"
def admit(waiting, running, blocks: int, block_size: int) -> int:
    """How many from the front of `waiting` may start now."""
    def at_its_end(request) -> int:
        return -(-(request.prompt + request.answer) // block_size)

    free = blocks - sum(at_its_end(request) for request in running)
    count = 0
    for request in waiting:
        free -= at_its_end(request)
        if free < 0:
            break
        count += 1
    return count


# %% tags=["check"] exercise="06.4"
check("06.4", admit)

# %% [markdown]
# ### 06.5 The batch that meets a p99 target
# You promise that for 99 of 100 requests each further token takes at most `load.target` seconds. Which of the limits 1, 2, 4, 8, 16, 32 is the largest that keeps the promise, under the arrivals and the step times of this lesson? `serve(cap)` runs the simulation; a run's `.at("pace", 99)` is in seconds.

# %%
load = SimpleNamespace(decode=decode_points, prefill=prefill_points, requests=arrivals, blocks=1000,
                       target=(serve(1).at("pace", 99) + serve(32).at("pace", 99)) / 2)
print(f"at most {seconds_text(load.target)} a token, for 99 of 100 requests")

# %% tags=["stub"] exercise="06.5"
answer_5 = ...

# %% tags=["solution"] exercise="06.5"
def p99(cap: int) -> float:
    """Simulated seconds a token that 99 of 100 requests do not exceed."""
    return simulate(load.requests, between(load.prefill), between(load.decode), cap, load.blocks,
                    admit=reserving).at("pace", 99)


answer_5 = max(cap for cap in (1, 2, 4, 8, 16, 32) if p99(cap) <= load.target)

# %% tags=["check"] exercise="06.5"
check("06.5", answer_5, given=load)

# %% [markdown]
# ### 06.6 Compute or memory
# `llama-3.1-8b`, weights and cache in bf16, on an H100 by its published rates. FLOPs over the peak, or bytes over the bandwidth: which holds each of these up, and how many ms does it take at least? Count as *Two kinds of work in one server* does: every parameter, each weight read once, attention over the tokens that are seen (in a prefill half of the prompt, on average). Two in a hundred is near enough.
#
# - **A** a decode step of 1 request that holds 1,000 tokens
# - **B** the prefill of one prompt of 4,000 tokens
# - **C** a decode step of 64 requests of 2,000 tokens each
# - **D** a decode step of 1,000 requests of 100 tokens each
# - **E** a decode step of 1,000 requests of 2,000 tokens each, if they fitted
# - **F** the prefill of one prompt of 100 tokens

# %% tags=["stub"] exercise="06.6"
answer_6 = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}

# %% tags=["solution"] exercise="06.6"
def least_ms(requests: int, sees: float, new: int = 1) -> float:
    """The longer of both floors when each of `requests` passes `new` tokens that see `sees` tokens on average."""
    model, card = shape("llama-3.1-8b"), gpu("h100-sxm")
    count, tokens = predict.parameters(model).total, requests * new
    flops = tokens * (2 * count + 4 * model.layers * model.hidden * sees)
    moved = 2 * count + requests * max(sees, new) * kv_bytes_per_token(model)
    return 1e3 * max(flops / card.peak("bf16"), moved / card.bandwidth)


answer_6 = {
    "A": least_ms(1, 1000),  # memory: one token for all the weights
    "B": least_ms(1, 2000, new=4000),  # compute
    "C": least_ms(64, 2000),  # memory: the caches are as much as the weights
    "D": least_ms(1000, 100),  # compute
    "E": least_ms(1000, 2000),  # memory: hardly anything but caches
    "F": least_ms(1, 50, new=100),  # memory: too few tokens share the weights
}

# %% tags=["check"] exercise="06.6"
check("06.6", answer_6)

# %% [markdown]
# ### 06.7 A quantiser that ruins the answer
# Somebody stores the cache in 8 bits, and the model talks nonsense. Mend it. The dequantised value is `q.float() * scale`; the scale may broadcast, and the limit is one for each token of each head. `x` is `[B, heads, T, D]`; now and then a token is several hundred times as large as the others.
#
# ```python
# def quantise8(x):
#     scale = x.abs().max() / 128
#     return (x / scale).to(torch.int8), scale
# ```

# %% tags=["stub"] exercise="06.7"
def quantise8(x):
    """(int8 tensor of x's shape, scale)."""
    ...


# %% tags=["solution"] exercise="06.7"
def quantise8(x):
    """(int8 tensor of x's shape, scale)."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)  # [B, heads, T, 1]
    return (x / scale).round().to(torch.int8), scale


# %% tags=["check"] exercise="06.7"
check("06.7", quantise8)

# %% [markdown]
# ### 06.8 Refused at 29,000, running at 35,000
# The server of A16 above refuses to start with a longest request of 29,000 tokens. The same server on the same card starts with 35,000, and with 45,000. What explains it? How many GiB of keys and values does one request of 29,000 tokens need? And by how many GiB has the cache grown at least, from 29,000 to 45,000?
#
# - `a`: a longer maximum makes the server choose a smaller format for keys and values
# - `b`: beyond a length the prompt is prefilled in pieces, so the activations to be kept free are smaller, and the cache gets what they leave
# - `c`: a longer maximum makes the blocks larger, so that fewer tokens are wasted
# - `d`: with a longer maximum fewer requests run at once, so each finds more of the cache

# %%
question("06.8")

# %% tags=["stub"] exercise="06.8"
answer_8 = {"why": ..., "one of 29,000, GiB": ..., "grown by at least, GiB": ...}

# %% tags=["solution"] exercise="06.8"
token = kv_bytes_per_token(shape("llama-3.1-8b")) / GiB
had = next(float(r["value"]) for r in published("serving")
           if (r["case"], r["what"], r["quantity"]) == ("A16", "longest request 29000", "cache"))
answer_8 = {"why": "b", "one of 29,000, GiB": 29_000 * token, "grown by at least, GiB": 45_000 * token - had}

# %% tags=["check"] exercise="06.8"
check("06.8", answer_8)

# %% [markdown]
# ## When it breaks
# A server of a 7B model is configured to run 256 requests at once, "for throughput". Under load its GPU is busy all the time, the first token takes a minute, and answers stall half-way for seconds. The log has a line, easily overlooked, about sequences that were pre-empted.
#
# That is C27 above: the cache has room for `runnable` requests at their full length, and 256 were let in. It is played here with requests of similar length, on step times computed from the published rates of two cards of 24 GB. The original's card and arrivals are not known, so hold the two rules against each other, not against the log.

# %% tags=["nbval-check-output"]
busy = drawn(300, 8.0, (256, 768), (300, 816), seed=0)  # far more than either card keeps up with
cache_7b = int(log["C27", "full server", "tokens"]) // 16
storm = {}
for card in (small_card, gpu("l4")):
    step_7b = {b: decode_seconds(seven, b, 800, card.peak("bf16"), card.bandwidth) for b in range(1, 257)}
    token_7b = prefill_seconds(seven, 1000, card.peak("bf16")) / 1000
    for rule in (greedy, reserving):
        storm[f"{rule.__name__}, {card.name}"] = simulate(
            busy, lambda tokens: tokens * token_7b, step_7b.get, 256, cache_7b, admit=rule)

table = [["300 requests, simulated", *storm]]
for name, of in {"pre-emptions": lambda r: f"{r.preemptions}", "tokens computed again": lambda r: f"{r.computed_again:,}",
                 "tokens/s": lambda r: f"{r.tokens_per_second:,.0f}", "wait p50, s": lambda r: f"{r.at('wait', 50):.1f}",
                 "pace p50, ms": lambda r: f"{1e3 * r.at('pace', 50):.0f}",
                 "pace p99, ms": lambda r: f"{1e3 * r.at('pace', 99):.0f}",
                 "latency p99, s": lambda r: f"{r.at('latency', 99):.1f}"}.items():
    table.append([name, *map(of, storm.values())])
print(columns_text(table))

# %%
stormy = storm["greedy, rtx-4090"]
queue(f"Let in by what is free now: {stormy.preemptions} pre-emptions among {len(busy)} requests", stormy.turns,
      f"greedy admission, simulated on step times computed for {small_card.title}")

# %% [markdown]
# That pre-emption always costs throughput is not so. Where memory is slow beside compute, as on the second card, a crowded step is so much better used that work may be thrown away and the whole still ends sooner. What it costs on both is *pace*: an answer that has begun stops, and p99 shows it where p50 of the wait looks better than before. Which of the two you want is a decision; a server that nobody watches has taken it for you.
#
# The symptom to look for is the pre-emption counter, not utilisation: a GPU that prefills the same prompt for the third time is as busy as one that makes progress. The cures, in this order: admit by the length at the *end*, or by a limit of about tokens ÷ length; make a token smaller (fp8 cache, a model with fewer kv heads); then more memory. Reserving needs to know how long an answer may get. That is what the limit on new tokens in a request is for, and a limit far above what people use brings the waste of the longest length back.

# %% [markdown]
# ## Explain it
# Without notes: **follow one request from its arrival to its last token. What does it read, what does it leave in memory, and whom does it delay?** Then:
#
# 1. Why are keys and values kept, and queries not?
# 2. The cache saves a far larger share of the work than of the time. Why?
# 3. For which requests does a larger batch stop helping, and what helps then?
# 4. p50 of the wait is good and p99 of the pace is bad. What do you change, and what gets worse?
# 5. Somebody doubles the number of GPUs under tensor parallelism, and a token's bytes on each stay the same. What is the model like?

# %% [markdown]
# ## Take away
# > **A cache of 2 · layers · kv heads · head size · bytes a token is what limits a server.** Weights are paid once, the cache for each token of each person.
#
# > **Prefill is bound by compute, decode by memory.** A batch shares the weights and never the caches: with long contexts no batch reaches the roof.
#
# > **Admit by the length at the end, and choose the batch by a percentile.** A pre-empted request is computed twice, and utilisation does not show it.
#
# Reading: *Efficient Memory Management for Large Language Model Serving with PagedAttention* (Kwon et al., 2023); *Orca* (Yu et al., 2022) for continuous batching; *GQA* (Ainslie et al., 2023). Next: 09, where several processes have to agree.
