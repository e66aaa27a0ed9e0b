"""Lesson 06, KV cache and serving."""

import random
from dataclasses import dataclass
from types import SimpleNamespace

from gpucourse.catalog import GiB, KiB, gpu, llama, shape
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.kinds import Choice, Code, Guess, Misconception, Number, Parts, Pick, Quantity
from gpucourse.predict.admission import greedy, reserving
from gpucourse.predict.kv_cache import kv_bytes_per_token
from gpucourse.predict.paging import blocks_for
from gpucourse.predict.parameters import parameters
from gpucourse.predict.requests import drawn
from gpucourse.predict.served import between
from gpucourse.predict.simulation import simulate

GUESSES = (Guess("06.g1", ("time without a cache / with", "tokens/s, 32 requests / 1"), "×"),
           Guess("06.g2", "8B on a 24 GB card", "requests"))


def each(model: str, tensor: int = 1, heads: int = 0) -> float:
    """KiB a token on each GPU; `heads` in place of the model's kv heads."""
    what = shape(model)
    return kv_bytes_per_token(what.but(kv_heads=heads) if heads else what, tensor=tensor) / KiB


FIFTY = 50 * 2000 * kv_bytes_per_token(shape("llama-3.1-8b"))
BYTES = {
    "llama-2-7b, KiB a token": Quantity(expected=lambda: each("llama-2-7b"), unit="KiB", within=1e-3, misconceptions=(
        Misconception(lambda: each("llama-2-7b") / 2, "Keys *and* values are kept."),
        Misconception(lambda: each("llama-2-7b") / 32, "That is one layer. Each has keys and values of its own."))),
    "llama-3.1-8b, KiB a token": Quantity(
        expected=lambda: each("llama-3.1-8b"), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("llama-3.1-8b", heads=32), "That counts the query heads. Queries are not kept: "
                                                                  "how many heads have keys?"),
            Misconception(lambda: each("llama-3.1-8b") / 2, "Keys *and* values are kept."))),
    "qwen3-235b on 4 GPUs, KiB a token and GPU": Quantity(
        expected=lambda: each("qwen3-235b", 4), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("qwen3-235b"), "That is all GPUs together. The heads are divided among them."),
            Misconception(lambda: each("qwen3-235b", 4, heads=64), "That counts the query heads."))),
    "qwen3-235b on 8 GPUs, KiB a token and GPU": Quantity(
        expected=lambda: each("qwen3-235b", 8), unit="KiB", within=1e-3, misconceptions=(
            Misconception(lambda: each("qwen3-235b") / 8, "That is half a head a GPU. A head is not cut: with more "
                                                          "GPUs than kv heads, what do the others hold?"),)),
    "llama-3.1-8b, 50 requests of 2,000 tokens, GiB": Quantity(
        expected=FIFTY / GiB, unit="GiB", within=1e-3, misconceptions=(
            Misconception(FIFTY / 1e9, "That is GB: a GiB is 2³⁰ bytes."),
            Misconception(FIFTY / 50 / GiB, "That is one request."))),
}


def run_attend(function):
    """The values piece by piece, what is kept, and how many tokens pass through the projections."""
    import torch

    from gpucourse.models.transformer import Attention, rotary_tables

    heads = random.choice((4, 6, 8))
    what = llama("drawn", 1, 8 * heads, heads, heads // 2, 64, vocab=32, context=64)
    attention = Attention(what).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.4)
    rotary = tuple(table.double() for table in rotary_tables(64, 8))
    sizes = (random.randint(3, 9), 1, random.randint(2, 6), 1)
    x = torch.randn(2, sum(sizes), what.hidden, dtype=torch.float64)
    passed = []
    with torch.no_grad():
        whole = attention(x, tuple(table[:x.shape[1]] for table in rotary))
        attention.k.register_forward_hook(lambda module, inputs, result: passed.append(inputs[0].shape[1]))
        kept, begin = None, 0
        for size, name, note in zip(sizes, PIECES, PIECES.values(), strict=False):
            answer = function(attention, x[:, begin:begin + size], rotary, kept)
            yield expect_equal(f"{name}: a result and what is kept",
                               (len(answer), len(answer[1])) if isinstance(answer, tuple) else answer, (2, 2),
                               note="Return y and the pair of keys and values.")
            y, kept = answer
            yield expect_close(name, y, whole[:, begin:begin + size], atol=1e-9, note=note)
            begin += size
            place = (2, what.kv_heads, begin, 8)
            yield expect_equal(f"{name}: the shapes kept", [tuple(t.shape) for t in kept], [place, place],
                               note="Keys and values of all tokens so far, and of the kv heads only: sharing among the "
                                    "query heads is made when they are used.")
    yield expect_at_most("tokens through the key projection", sum(passed), sum(sizes), "tokens",
                         note="Some passed more than once. What is kept for, if not to be computed once?")


PIECES = {
    "a prompt": "Without a past this is causal attention: token t sees itself and what came before.",
    "one more token": "It stands behind the past: which rows of cos and sin are its own? And it sees every key, while "
                      "is_causal counts from the first.",
    "several more": "Token t of these sees past + t + 1 keys. is_causal counts from the first key; with no mask a "
                    "token sees what comes after it.",
    "the last token": "The past now has several pieces: are all of them in what you keep?",
}


def broken_attend(positions=True, mask="right", expand=False, again=False):
    def attend(attention, x, rotary, kept):
        import torch
        import torch.nn.functional as F

        from gpucourse.models.transformer import rotate

        B, T, _ = x.shape
        past = 0 if kept is None else kept[0].shape[2]
        q, k, v = (p(x).view(B, T, -1, attention.head_size).transpose(1, 2)
                   for p in (attention.q, attention.k, attention.v))
        if again:
            attention.k(x)
        rows = slice(past, past + T) if positions else slice(T)
        q, k = (rotate(t, rotary[0][rows], rotary[1][rows]) for t in (q, k))
        if expand:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        if kept is not None:
            k, v = torch.cat((kept[0], k), dim=2), torch.cat((kept[1], v), dim=2)
        allowed = torch.ones(T, past + T, dtype=torch.bool).tril(past)
        how = {"right": {"attn_mask": allowed}, "causal": {"is_causal": True},
               "none": {"is_causal": past == 0}}[mask]
        y = F.scaled_dot_product_attention(q, k, v, **how, enable_gqa=not expand)
        return attention.out(y.transpose(1, 2).reshape(B, T, -1)), (k, v)
    return attend


def run_grow(function):
    """Many sequences on one pool: whole blocks, no more than needed, none taken when refused, none moved."""
    refused = moved = spare = lost = 0
    for size in random.sample((3, 4, 8, 16), 3):
        count = random.randint(24, 60)
        free, tables, lengths = list(range(count)), {}, {}
        random.shuffle(free)
        for step in range(300):
            sequence, tokens = random.randrange(7), random.choice((1, 1, 2, size - 1, size, 2 * size + 1))
            tokens = tokens if step else size * count + 1  # the first asks for more than there is
            table, length = tables.setdefault(sequence, []), lengths.get(sequence, 0)
            if length and random.random() < 0.12:  # it has ended: the server gives its blocks back
                free += tables.pop(sequence)
                del lengths[sequence]
                continue
            before, left = list(table), len(free)
            need = blocks_for(length + tokens, size) - len(before)
            got = function(free, table, length, tokens, size)
            if got is not (need <= left):
                yield expect_equal(f"room for {tokens} more of {length} tokens, {len(before)} blocks held "
                                   f"and {left} free, {size} tokens a block", got, need <= left,
                                   note="Free blocks serve wherever they lie. The room left in the last block comes "
                                        "first: True where the blocks still missing are free.")
                return
            if got:
                lengths[sequence] = length + tokens
                moved += table[:len(before)] != before
                spare += len(table) - blocks_for(length + tokens, size)
            else:
                refused += len(free) != left or table != before
        lost += sorted(free + [block for table in tables.values() for block in table]) != list(range(count))
    yield expect_equal("pools in which a block was lost or given twice", lost, 0,
                       note="Blocks come out of `free` and go into the table, each once.")
    yield expect_equal("blocks beyond those needed", spare, 0,
                       note="A sequence of `length` tokens fills the room left in its last block before it takes "
                            "another: it never wastes a whole block.")
    yield expect_equal("refusals that took something", refused, 0,
                       note="A refusal takes nothing: count first, then take.")
    yield expect_equal("tables that changed their earlier blocks", moved, 0,
                       note="The tokens that are stored stay where they are: only append to the table.")


def broken_grow(kind):
    def grow(free, table, length, tokens, block_size):
        need = blocks_for(length + tokens, block_size) - len(table)
        if kind == "one more":
            need = (length + tokens) // block_size + 1 - len(table)
        if kind == "each call":
            need = blocks_for(tokens, block_size)
        if kind == "in one piece" and need > 0:
            first = table[-1] + 1 if table else min(free, default=0)
            if not set(range(first, first + need)) <= set(free):
                return False
        if kind == "takes what there is":
            while need > 0 and free:
                table.append(free.pop())
                need -= 1
            return need <= 0
        if need > len(free):
            return False
        table.extend(free.pop() for _ in range(need))
        if kind == "front":
            table.reverse()
        if kind == "shares":
            free[:0] = table[-1:]
        return True
    return grow


@dataclass(frozen=True)
class State:
    """A request as a rule of admission sees it."""

    prompt: int
    answer: int
    done: int = 0


def states(size: int):
    """Queue, running, blocks, and the one thing that this state is about."""
    draw = random.randint
    long = [State(draw(1, size), size * draw(8, 12), draw(1, 4)) for _ in range(3)]
    full = sum(blocks_for(r.prompt + r.answer, size) for r in long)
    yield ([State(size, size) for _ in range(6)], long, full + draw(4, 5),
           "Each that runs goes on growing, up to its prompt and its whole answer. Who is let in on blocks that it "
           "will still need?")
    yield ([State(size, draw(1, size // 3)) for _ in range(8)], [], draw(7, 9),
           "Count in blocks: a request's last one is its own, however few tokens are in it.")
    yield ([State(size, size), State(9 * size, size), State(1, 1)], [], 5,
           "First come, first served: who does not fit stops those behind.")
    yield ([State(size, 9 * size)] * 3, [], 19, "A request that starts needs room for its answer too.")
    yield ([State(size, 3 * size, done=2 * size)] * 4, [], 9,
           "A request that was pre-empted needs its prompt and its whole answer, what it has said included.")


def run_admit(function):
    """How many may start in states made for one mistake each, and a whole day with nobody pre-empted."""
    size, sound = random.choice((4, 8, 16)), True
    for place, (waiting, running, blocks, note) in enumerate(states(size), 1):
        got, right = function(list(waiting), list(running), blocks, size), reserving(waiting, running, blocks, size)
        yield expect_equal(f"state {place}: how many may start", got, right, note)
        sound &= got == right
    if not sound:  # such a rule would stop the simulated server
        return
    requests = drawn(120, 2.0, (4, 60), (10, 90), random.randrange(10**6))
    times = (lambda tokens: 0.002 * tokens, lambda count: 0.02 + 0.001 * count)
    best = simulate(requests, *times, 64, 60, 8, reserving)
    run = simulate(requests, *times, 64, 60, 8, function)
    yield expect_at_most("pre-emptions among 120 requests", run.preemptions, 0, "",
                         note="Somebody was let in on blocks that those who run still need.")
    yield expect_at_most("seconds for all of them, simulated", run.seconds, best.seconds, "s",
                         note="Nobody is pre-empted, and places stay empty that could be used.")


def broken_admit(need=lambda w, size: blocks_for(w.prompt + w.answer, size),
                 held=lambda r, size: blocks_for(r.prompt + r.answer, size), skip=False):
    def admit(waiting, running, blocks, block_size):
        free, count = blocks - sum(held(r, block_size) for r in running), 0
        for w in waiting:
            if need(w, block_size) > free:
                if skip:
                    continue
                break
            free, count = free - need(w, block_size), count + 1
        return int(count)
    return admit


CAPS = (1, 2, 4, 8, 16, 32)


def runs(load) -> dict:
    return {cap: simulate(load.requests, between(load.prefill), between(load.decode), cap, load.blocks, 16, reserving)
            for cap in CAPS}


def largest_cap(load, percent: float = 99, what: str = "pace") -> int:
    """The largest cap whose percentile keeps to the target; with no percentile, by the mean."""
    return max(cap for cap, run in runs(load).items() if run.at(what, percent) <= load.target)


def fastest_cap(load) -> int:
    every = runs(load)
    return max(every, key=lambda cap: every[cap].tokens_per_second)


def example_load():
    load = SimpleNamespace(decode={1: 0.005, 2: 0.006, 4: 0.007, 8: 0.009, 16: 0.014, 32: 0.024},
                           prefill={64: 0.02, 512: 0.15}, blocks=1000,
                           requests=drawn(80, 9.0, (16, 128), (16, 96), 0), target=0.0)
    paces = [run.at("pace", 99) for run in runs(load).values()]
    load.target = (paces[0] + paces[-1]) / 2
    return load


MODEL, CARD = shape("llama-3.1-8b"), gpu("h100-sxm")
WORK = {  # prefill: tokens of one prompt; decode: requests, tokens that each holds
    "A": ("decode", 1, 1000), "B": ("prefill", 4000, 0), "C": ("decode", 64, 2000), "D": ("decode", 1000, 100),
    "E": ("decode", 1000, 2000), "F": ("prefill", 100, 0),
}


def intensity(kind: str, many: int, context: int) -> float:
    """FLOPs a byte of a prefill of `many` tokens or of a decode step of `many` requests, weights and cache in bf16."""
    keys = context if kind == "decode" else many / 2  # that a token sees, on average
    flops = many * (2 * parameters(MODEL).total + 4 * MODEL.layers * MODEL.hidden * keys)
    cache = kv_bytes_per_token(MODEL) * (many * context if kind == "decode" else many)
    return flops / (2 * parameters(MODEL).total + cache)


def bound(name: str) -> str:
    return "compute" if intensity(*WORK[name]) > CARD.peak("bf16") / CARD.bandwidth else "memory"


LIMITS = {"compute": "That needs more FLOPs for each byte than this has. Which bytes are read for these tokens, and "
                     "how many tokens share them?",
          "memory": "Here enough tokens share each byte of weights, and each brings little cache of its own: the FLOPs "
                    "a byte pass the card's turn."}


def bound_part(name: str) -> Pick:
    return Pick(options={key: key for key in LIMITS}, right=lambda: bound(name), why=LIMITS)


def run_quantise(function):
    """Within half a step of each token's own scale, and one scale for each token of each head."""
    import torch

    x = torch.randn(2, 3, 40, 64)
    x[0, 1, 7] *= 300  # one large token
    x[1, 2, 5] = 0  # padding, whose scale may be anything
    answer = function(x.clone())
    yield expect_equal("two tensors come back", len(answer) if isinstance(answer, tuple) else answer, 2)
    q, scale = answer
    yield expect_equal("the dtype that is kept", str(q.dtype), "torch.int8")
    yield expect_equal("its shape", tuple(q.shape), tuple(x.shape))
    yield expect_at_most("numbers in the scale", scale.numel(), x.numel() // 64, "",
                         reason="for one each of 64 elements",
                         note="A scale for each element costs more than it saves.")
    step = x.abs().amax(-1, keepdim=True) / 127  # of each token of each head
    back = q.float() * scale
    off = (back - x).abs() / step.clamp(min=1e-30)
    ends = x.abs() > 0.996 * x.abs().amax(-1, keepdim=True)
    ends[1, 2, 5] = False
    yield expect_at_most("the largest value of each token: error in its steps", off[ends].max().item(), 0.51, "",
                         note="int8 ends at 127: a value that scales to 128 wraps round to −128. Or the scale is not "
                              "this token's own.")
    yield expect_at_most("all others: error in steps of their own token's scale", off[~ends].max().item(), 0.51, "",
                         note="More than half a step. Is the value rounded or cut off, and does one large token set "
                              "the scale of all the others?")


def broken_quantise(top=127, dims=(-1,), rounded=True, clamp=True):
    def quantise(x):
        import torch

        scale = ((x.abs().amax(dims, keepdim=True) if dims else x.abs()) / top).clamp(min=1e-12)
        y = (x / scale).round() if rounded else (x / scale).trunc()
        y = y.clamp(-127, 127) if clamp else ((y + 128) % 256) - 128
        return y.to(torch.int8), scale
    return quantise


EXERCISES = (
    Parts("06.1", "Bytes a token", parts=BYTES,
          hints=("What is kept of each token, in each layer, and for which heads?",
                 "2 · layers · kv heads · head size · bytes. shape(\"qwen3-235b\") shows the sizes; its heads are 128 "
                 "wide.",
                 "On 4 GPUs each holds one of 4 kv heads. On 8 there are not enough to go round, and each still needs "
                 "a whole one.")),
    Code("06.2", "A layer's attention with a cache", run=run_attend,
         broken={"positions start again": (broken_attend(positions=False), "which rows of cos and sin are its own"),
                 "is_causal with a past": (broken_attend(mask="causal"), "is_causal counts from the first"),
                 "no mask with a past": (broken_attend(mask="none"), "sees what comes after it"),
                 "heads repeated in the cache": (broken_attend(expand=True), "of the kv heads only"),
                 "projected twice": (broken_attend(again=True), "passed more than once")},
         hints=("How many tokens are kept already? That number decides two things: the positions and the mask.",
                "Rotate the new queries and keys by rows past … past + T; append keys and values along the token "
                "dimension; let token t see past + t + 1 keys.",
                "mask = torch.ones(T, past + T, dtype=torch.bool).tril(past), passed as attn_mask, with "
                "enable_gqa=True. Keep k after rotation, before any repetition.")),
    Code("06.3", "A block allocator", run=run_grow,
         broken={"one block more at a boundary": (broken_grow("one more"), "room left in"),
                 "new blocks each call": (broken_grow("each call"), "room left in"),
                 "takes before it refuses": (broken_grow("takes what there is"), "A refusal takes nothing"),
                 "wants one piece": (broken_grow("in one piece"), "wherever they lie"),
                 "moves tokens": (broken_grow("front"), "stay where they are"),
                 "gives a block twice": (broken_grow("shares"), "each once")},
         hints=("How many blocks does the sequence need afterwards, and how many has it?",
                "Need is the length afterwards divided by the block size, rounded up. Compare what is missing with "
                "len(free) before you take anything.",
                "missing = -(-(length + tokens) // block_size) - len(table); False when it is more than len(free); "
                "else move that many from free to the end of table.")),
    Code("06.4", "Admission control", run=run_admit,
         broken={"what is free now": (greedy, "goes on growing"),
                 "running ones ignored": (broken_admit(held=lambda r, size: 0), "goes on growing"),
                 "tokens, not blocks": (broken_admit(need=lambda w, size: (w.prompt + w.answer) / size),
                                        "Count in blocks"),
                 "skips who does not fit": (broken_admit(skip=True), "First come, first served"),
                 "prompts only": (broken_admit(need=lambda w, size: blocks_for(w.prompt, size)), "room for"),
                 "one at a time": (lambda waiting, running, blocks, size: min(
                     1, reserving(waiting, running, blocks, size)), "goes on growing"),
                 "what it has said is counted on top": (
                     broken_admit(need=lambda w, size: blocks_for(w.prompt + w.answer + w.done, size)),
                     "what it has said included")},
         hints=("How many blocks will each request hold at its last token?",
                "Subtract the final blocks of all that run from the cache. Then go through the queue in order and "
                "subtract each one's final blocks while there are enough.",
                "Final blocks: (prompt + answer) / block_size, rounded up, whatever `done` is. Stop at the first that "
                "does not fit.")),
    Number("06.5", "The batch that meets a p99 target", unit="requests", within=0, expected=largest_cap,
           misconceptions=(
               Misconception(lambda load: largest_cap(load, 50), "That keeps the target for half of the requests: p50. "
                                                                 "The target is for 99 in 100."),
               Misconception(fastest_cap, "That is the batch with the most tokens a second. It misses the target.")),
           example=example_load(),
           hints=("For each cap: simulate, then ask the run for the 99th percentile of `pace`.",
                  "serve(cap).at(\"pace\", 99) is in seconds, as load.target is.",
                  "max(cap for cap in (1, 2, 4, 8, 16, 32) if serve(cap).at(…) <= load.target)")),
    Parts("06.6", "Compute or memory", parts={name: bound_part(name) for name in WORK},
          hints=("For each: which bytes are read, and how many FLOPs are done with them?",
                 "Weights: 2 bytes a parameter, read once a step for all tokens of the step; 2 FLOPs a parameter and "
                 "token. In decode each request reads its own cache besides.",
                 "The turn: the card's FLOP/s over its bytes/s, about 300. Decode: 2·N·b over 2·N + b·tokens·KV.")),
    Code("06.7", "A quantiser that ruins the answer", run=run_quantise,
         broken={"one scale for everything": (broken_quantise(dims=(0, 1, 2, 3)), "does one large token set"),
                 "one scale a sequence": (broken_quantise(dims=(1, 2, 3)), "does one large token set"),
                 "128 wraps": (broken_quantise(top=128, clamp=False), "wraps round"),
                 "cut off": (broken_quantise(rounded=False), "rounded or cut off"),
                 "a scale an element": (broken_quantise(dims=()), "costs more than it saves")},
         hints=("There are three faults. What happens to the largest value, to a value of 0.9 steps, and to "
                "all others when one token is large?",
                "amax over the last dimension only, kept as a dimension; 127; round(); a scale above 0, for padding.",
                "scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12), then (x / scale).round().")),
    Choice("06.8", "Refused at 29,000, running at 35,000",
           options={"a": "a longer maximum makes the server choose a smaller format for keys and values",
                    "b": "beyond a length the prompt is prefilled in pieces, so the activations to be kept free are "
                         "smaller, and the cache gets what they leave",
                    "c": "a longer maximum makes the blocks larger, so that fewer tokens are wasted",
                    "d": "with a longer maximum fewer requests run at once, so each finds more of the cache"},
           right="b",
           why={"a": "The bytes a token follow from the model and the dtype, which did not change.",
                "c": "Blocks stayed at 16 tokens, and a request wastes less than one of them.",
                "d": "The refusal is about one request alone: does the whole cache hold it?"},
           hints=("The cache gets what is left. Of what, after what is taken off?",
                  "Weights do not depend on the maximum. The reserve is for the activations of the largest prefill.")),
)
