"""Lesson 01, memory anatomy."""

import random

from gpucourse.catalog import Job, gpt, shape
from gpucourse.evidence import INSTANTS
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.kinds import Choice, Code, Guess, Misconception, Number, Parts, Pick, Quantity
from gpucourse.predict import memory, parameters

GUESSES = (Guess("01.g1", ("peak allocated", "activations and temporaries"), "GiB"),)


def state_bytes(precision: str, optimizer: str) -> float:
    """Bytes a parameter of weights, gradients and optimizer state, without AdamW's step counts."""
    ledger = memory(gpt("any", 2, 64, 2), Job(precision=precision, optimizer=optimizer))
    kept = [line for line in ledger.lines if line.name in
            ("weights", "gradients", "optimizer moments", "master weights")]
    return sum(line.bytes for line in kept) / parameters(gpt("any", 2, 64, 2)).total


def per_parameter(precision: str, optimizer: str, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: state_bytes(precision, optimizer), unit="bytes", within=0,
                    misconceptions=misconceptions)


STATES = {
    "fp32, AdamW": per_parameter(
        "fp32", "adamw",
        Misconception(4, "That is the weight alone, what it takes to load."),
        Misconception(8, "Weight and gradient. What does AdamW remember from step to step?"),
        Misconception(12, "One of three is missing: AdamW keeps a mean of the gradients *and* of their squares."),
        Misconception(20, "That counts the list that foreach makes inside step(). It is gone when step() returns.")),
    "fp32, SGD with momentum": per_parameter(
        "fp32", "momentum",
        Misconception(8, "SGD without momentum keeps nothing. With momentum it keeps one running mean."),
        Misconception(16, "That is AdamW. Momentum keeps one moment, not two.")),
    "bf16 autocast, AdamW": per_parameter(
        "bf16-autocast", "adamw",
        Misconception(8, "That is a model whose weights *are* bf16. Autocast casts inside the operations: what is "
                         "stored, and what the optimizer sees, stays fp32."),
        Misconception(14, "The weights stay fp32. The 16-bit copies that autocast makes come on top: activations."),
        Misconception(18, "The 16-bit copies of the weights are kept for backward: they are activations, not states.")),
    "pure bf16, AdamW": per_parameter(
        "bf16", "adamw",
        Misconception(16, "PyTorch makes the moments in the weights' dtype: bf16 weights have bf16 moments."),
        Misconception(12, "The moments are bf16 too: PyTorch makes them in the weights' dtype.")),
    "bf16-master, AdamW": per_parameter(
        "bf16-master", "adamw",
        Misconception(12, "The optimizer also keeps an fp32 copy of the weights, beside the two fp32 moments."),
        Misconception(8, "That is pure bf16. Here the optimizer's part is fp32: moments, and a copy of the weights."),
        Misconception(18, "The gradients are bf16 in this set-up; fp32 gradients would give this number.")),
}

PEAKS = {
    "fp32, 1 × 16 tokens": (shape("gpt2"), Job(1, 16)),
    "fp32, 8 × 1024 tokens": (shape("gpt2"), Job(8, 1024)),
    "fp32, 8 × 1024 tokens, vocabulary 256": (shape("gpt2").but(vocab=256), Job(8, 1024)),
    "fp32, 8 × 1024 tokens, vocabulary 256, recompute": (
        shape("gpt2").but(vocab=256), Job(8, 1024, recompute="full")),
    "fp32, 1 × 16 tokens, fused": (shape("gpt2"), Job(1, 16, foreach=False, fused=True)),
}
WHY_NOT = {
    "forward": "Forward only adds. What comes right after its end has everything that forward left, and more.",
    "loss": "Three tensors of tokens × vocabulary lead only where the vocabulary is large and the tokens are many.",
    "last block": "All activations, hardly a gradient. That leads where activations are kept and outweigh the states.",
    "first block": "Hardly an activation, and all gradients but the embedding's and one block's. That leads where "
                   "every block is made again and the gradients have come to outweigh the blocks' inputs.",
    "embedding": "The table's gradient is made here, and added to the head's. That leads where tokens are few and "
                 "step() makes nothing.",
    "step": "All states, and what the optimizer makes for itself. Does it make anything here, and do few tokens stand "
            "against it?",
}


def peak_part(where) -> Pick:
    return Pick(options={name: name for name in INSTANTS}, right=lambda: memory(*where).peak_at, why=WHY_NOT)


def run_step_ledger(function):
    """Random shapes against the closed form of the package, which is held against dry runs elsewhere."""
    draw = random.Random()
    for turn in (1, 2, 3):
        heads = draw.randint(2, 12)
        model = gpt("drawn", draw.randint(2, 40), heads * 8 * draw.randint(4, 12), heads,
                    vocab=draw.randint(5_000, 60_000))
        model = model.but(ffn=draw.choice((2, 3, 4)) * model.hidden + 64 * draw.randint(0, 3))
        job = Job(draw.randint(8, 24), draw.randint(500, 1024))  # tokens enough that the logits lead at the loss
        ledger = memory(model, job)
        got = function(parameters(model).total, job.tokens, model.layers, model.hidden, model.ffn, model.heads,
                       model.vocab)
        yield expect_equal(f"model {turn}: a dict with \"loss\" and \"step\"",
                           sorted(got) if isinstance(got, dict) else got, ["loss", "step"])
        for instant, note in (
                ("loss", "Weights and moments, the batch, all blocks, what the head saved, and what its backward "
                         "makes. Has any gradient of a weight been made at this instant?"),
                ("step", "Everything that is a parameter's: how many lists of N elements are alive inside step()?")):
            yield expect_close(f"model {turn}, {instant}: within 1 %", got[instant] / ledger.total(instant), 1.0,
                               atol=0.01, note=note)


def broken_ledger(step_bytes=20, loss_bytes=12, logits=3, width=32):
    def step_ledger(N, n, layers, h, f, a, V):
        blocks = layers * n * (width * h + 8 * f + 16 + 4 * a)
        return {"loss": loss_bytes * N + 16 * n + blocks + n * (8 * h + 8) + 4 * logits * n * V,
                "step": step_bytes * N + 16 * n}
    return step_ledger


def data(batches: int, rows: int, width: int, short: int = 0):
    import torch

    sizes = [rows] * batches
    if short:
        sizes[-1] = short
    return [(torch.randn(size, width), torch.randn(size, 1).exp()) for size in sizes]


def small_model(width: int, dropout: float = 0.0):
    import torch

    return torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Dropout(dropout),
                               torch.nn.Linear(64, 1))


def run_train(function):
    """The same weights and mean as a plain loop, and as much memory after many steps as after few."""
    import copy

    import torch

    from gpucourse.measure import LiveStorages

    model = small_model(24)
    twin, batches = copy.deepcopy(model), data(10, 16, 24)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin))
    losses = []
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(twin(x), y)
        other.zero_grad()
        loss.backward()
        other.step()
        losses.append(loss.item())
    got = function(model, optimizer, batches)
    yield expect_equal("a Python float comes back", type(got).__name__, "float",
                       note="A tensor that is returned still holds the graph that made it.")
    yield expect_close("the mean loss", got, sum(losses) / len(losses), atol=1e-5)
    got, wanted = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, twin))
    yield expect_close("the same weights as the plain loop", got, wanted, atol=1e-5,
                       note="Every batch needs its backward, its step, and gradients that start from nothing.")
    ends = []

    def watched(count, live):
        for step in range(count):
            yield batches[step % len(batches)]
            ends.append(live.live)

    with LiveStorages() as live:
        live.own(model, *(t for pair in batches for t in pair))
        function(model, optimizer, watched(100, live))
    yield expect_at_most("live bytes after 100 steps, above those after 10", ends[-1] - ends[9], 64, "bytes",
                         note="Memory grows with each step. Which object of a step is still reachable after it, "
                              "and what does that object hold?")


def leaky(keep):
    def train(model, optimizer, batches):
        import torch

        total, seen = 0, []
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total, seen = total + keep(loss), [*seen, keep(loss)]
        return float(getattr(total, "detach", lambda: total)() / len(seen))
    return train


def never_zeroed(model, optimizer, batches):
    import torch

    losses = []
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def returns_a_tensor(model, optimizer, batches):
    import torch

    return torch.tensor(leaky(lambda loss: loss.item())(model, optimizer, batches))


def run_evaluate(function):
    """Values with an uneven last batch and with dropout, the mode left as found, and the peak of one forward layer."""
    import torch

    from gpucourse.measure import LiveStorages

    model, batches = small_model(24, dropout=0.5), data(5, 4000, 24, short=300)
    model.eval()
    with torch.no_grad():
        errors = torch.cat([((model(x) - y) ** 2).flatten() for x, y in batches])
    model.train()
    owned = [t for pair in batches for t in pair]
    with LiveStorages() as live:
        live.own(model, *owned)
        before = live.live
        got = function(model, batches)
    wide = 4000 * 64 * 4  # one hidden layer's output for the largest batch, fp32
    yield expect_close("the mean over all samples, dropout off", got, errors.mean().item(), atol=2e-4,
                       note="The last batch is shorter, so a mean of means is not the mean; and dropout belongs off.")
    yield expect_equal("the model is back in training mode", model.training, True,
                       note="It came in training mode. Whoever calls you goes on training without dropout.")
    yield expect_at_most("peak above the start", live.peak - before, 2.2 * wide, "bytes",
                         reason="for one layer's input and output",
                         note="Forward saves for backward as long as one may come. Who says that it will not be?")
    model.eval()
    function(model, batches[:1])
    yield expect_equal("a model in evaluation mode stays in it", model.training, False,
                       note="Remember the mode in which you found the model, instead of assuming it.")


def evaluation(grad=False, eval_mode=True, restore="as found", mean_of_means=False):
    def evaluate(model, batches):
        import torch

        found = model.training
        model.train(not eval_mode and found)
        sums, means, samples, kept = 0.0, [], 0, []
        with torch.set_grad_enabled(grad):
            for x, y in batches:
                loss = torch.nn.functional.mse_loss(model(x), y)
                kept.append(loss if grad else None)
                sums, samples, means = sums + loss.item() * len(x), samples + len(x), [*means, loss.item()]
        model.train({"as found": found, "train": True, "never": model.training}[restore])
        return sum(means) / len(means) if mean_of_means else sums / samples
    return evaluate


MESSAGES = {  # GiB: tried, capacity, free on the device, reserved and unallocated
    "A": (2.00, 23.6, 1.10, 1.90),
    "B": (24.00, 23.6, 12.80, 9.40),
    "C": (0.02, 4.0, 2.35, 0.02),
    "D": (6.00, 79.2, 1.50, 0.40),
}
VERDICTS = {
    "impossible": "More than the card has. Compare what was tried with the capacity first.",
    "too large": "Free and reserved together would have been enough, or the card itself is too small: compare again.",
    "fragmented": "Pieces can only be the reason when all of them together would be enough, and no single one is.",
    "elsewhere": "The device has no free piece of the size that was tried: PyTorch's own pool explains the refusal.",
}


def verdict(message: str) -> str:
    tried, capacity, free, unallocated = MESSAGES[message]
    if tried > capacity:
        return "impossible"
    if tried > free + unallocated:
        return "too large"
    return "elsewhere" if tried <= free else "fragmented"


def message_part(name: str) -> Pick:
    return Pick(options={key: key for key in VERDICTS}, right=lambda: verdict(name), why=VERDICTS)


ON_ONE = Job(seq=1024, precision="bf16-autocast", recompute="full", foreach=False, fused=True)


def largest_batch(fits) -> int:
    return max(batch for batch in range(1, 200) if fits(memory(shape("gpt2-xl"), ON_ONE.but(micro_batch=batch))))


EXERCISES = (
    Parts("01.1", "Bytes a parameter", parts=STATES,
          hints=("Name the lists that are as long as the model: which exist between two steps, which within one?",
                 "Weights, gradients, moments, and in one case a copy of the weights: four lists at most. "
                 "Whose dtype does each have?",
                 "Autocast stores what fp32 stores. Pure bf16 makes all four lists bf16. bf16-master: 2 + 2, and in "
                 "the optimizer three fp32 lists.")),
    Parts("01.2", "Where is the peak?", parts={name: peak_part(where) for name, where in PEAKS.items()},
          hints=("States: 16 bytes × parameters, 20 inside step(). Logits: 12 bytes × tokens × vocabulary at the loss. "
                 "Which is larger?",
                 "When neither logits nor step() lead, follow the activations: where are all of them alive, with the "
                 "largest temporaries of one block on top?",
                 "predict.memory(shape(\"gpt2\"), Job(1, 16)) prints the ledger with ◀ at the peak; "
                 "shape(\"gpt2\").but(vocab=256) is the same model with another vocabulary.")),
    Code("01.3", "The ledger of a given model", run=run_step_ledger,
         broken={"gradients at the loss": (broken_ledger(loss_bytes=16), "Has any gradient of a weight been made"),
                 "no list of foreach": (broken_ledger(step_bytes=16), "how many lists of N elements"),
                 "logits once": (broken_ledger(logits=1), "what its backward makes"),
                 "no keys and values": (broken_ledger(width=24), "all blocks")},
         hints=("Which of weights, gradients and moments exist at the loss of a second step? Which at step()?",
                "The blocks: layers × n × (the formula of the lesson, with k = h). The head: its saved tensors, and "
                "two more of 4·n·V bytes while its backward runs.",
                "loss: 12·N + 16·n + blocks + n·(8h + 8 + 4V) + 8·n·V. At step() no activation is left; count the "
                "lists.")),
    Code("01.4", "A leak", run=run_train,
         broken={"keeps the loss tensor": (leaky(lambda loss: loss), "still reachable"),
                 "clones without detaching": (leaky(lambda loss: loss.clone()), "still reachable"),
                 "never zeroes the gradients": (never_zeroed, "gradients that start from nothing"),
                 "returns a tensor": (returns_a_tensor, "still holds the graph")},
         hints=("What is `total` after three steps: a number, or something that can still be differentiated?",
                "A tensor that requires gradients holds the graph that made it. What takes the number out of it?",
                "Add loss.item() (or loss.detach()) to a float, and return a float.")),
    Code("01.5", "An evaluation that costs as much as training", run=run_evaluate,
         broken={"builds the graph": (evaluation(grad=True), "Who says that it will not be"),
                 "dropout on": (evaluation(eval_mode=False), "dropout belongs off"),
                 "stays in evaluation mode": (evaluation(restore="never"), "goes on training without dropout"),
                 "always back to training": (evaluation(restore="train"), "Remember the mode"),
                 "mean of means": (evaluation(mean_of_means=True), "a mean of means is not the mean")},
         hints=("Two separate things: what the layers compute in evaluation, and whether autograd records it.",
                "model.eval() switches dropout off and records as before. torch.no_grad() records nothing.",
                "Keep model.training before you change it; weigh each batch's mean by its number of samples.")),
    Parts("01.6", "Four messages", parts={name: message_part(name) for name in MESSAGES},
          hints=("Go down the list in its order: the first that applies is the diagnosis.",
                 "Add the last two columns. Is the sum enough for what was tried? Is one of them enough alone?",
                 "impossible: tried > capacity. too large: tried > free + unallocated. elsewhere: tried ≤ free.")),
    Number("01.7", "The largest batch", unit="sequences", within=0,
           expected=lambda: largest_batch(lambda ledger: ledger.fits("a100-80") == "yes"),
           misconceptions=(
               Misconception(lambda: largest_batch(lambda ledger: ledger.fits("a100-80") != "no"),
                             "That is the largest batch that is not refused: its verdict is uncertain."),
               Misconception(lambda: largest_batch(lambda ledger: ledger.peak <= 80e9),
                             "That compares allocated bytes with the number on the box. The device also shows what the "
                             "allocator reserves and the context, and torch reports less than the box."),
               Misconception(lambda: largest_batch(lambda ledger: ledger.reserved[1] <= 79.14 * 2**30),
                             "The CUDA context is missing: reserved is not yet what the device shows.")),
           hints=("Which of the three figures has to stay under the card's capacity?",
                  "predict.memory(shape(\"gpt2-xl\"), job).fits(\"a100-80\") says yes, no or uncertain for one batch.",
                  "Job(seq=1024, precision=\"bf16-autocast\", recompute=\"full\", foreach=False, fused=True), then "
                  ".but(micro_batch=b) for b in 1 … 200.")),
    Choice("01.8", "More memory with autocast",
           options={"a": "bf16 needs padding to multiples of 8, which small batches pay for",
                    "b": "the gradients are kept in both precisions until the optimizer has run",
                    "c": "16-bit copies of the weights are kept for backward, and with few tokens the activations that "
                         "shrink are smaller than those copies",
                    "d": "the optimizer keeps an extra fp32 copy of the weights under autocast"},
           right="c",
           why={"a": "No padding is made. Compare what grows with tokens and what grows with parameters.",
                "b": "A gradient is cast to fp32 as soon as it is made, layer by layer: no second list exists.",
                "d": "The weights themselves are fp32 under autocast: there is nothing to keep a copy of."},
           hints=("Autocast must give a bf16 matrix product bf16 inputs: both of them.",
                  "Compare the line `saved by the blocks` in the ledgers of fp32 and of bf16-autocast at one token.")),
)
