"""Lesson 02, timing and roofline."""

import random
import statistics

from gpucourse.catalog import gpu, shape
from gpucourse.exercises.bank.played_device import broken_seconds, one_long_queue, run_seconds_of
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.kinds import Choice, Code, Guess, Misconception, Number, Parts, Pick, Quantity
from gpucourse.predict import parameters
from gpucourse.predict.compute import CONVENTIONS, ridge
from gpucourse.predict.utilization import mfu

GUESSES = (
    Guess("02.g1", ("linear, many rows", "linear, one row", "residual add"), "ms"),
    Guess("02.g2", ("MFU against the measured ceiling",), "%"),
)

H100 = gpu("h100-sxm")
RIDGE = ridge(H100.peak("bf16"), H100.bandwidth)
LAUNCH = 5e-6  # seconds


def turning_rows(intensity: float) -> float:
    """Rows of a 4096 → 4096 layer in 16 bits at which its FLOPs a byte are `intensity`."""
    return 1 / (1 / intensity - 2 / 4096)


def linear(m: int, k: int, n: int) -> tuple[int, int]:
    """FLOPs and bytes in 16 bits."""
    return 2 * m * k * n, 2 * (m * k + k * n + m * n)


PLACED = {  # FLOPs, bytes
    "A": linear(16384, 4096, 14336),
    "B": linear(64, 4096, 14336),
    "C": (16384 * 4096, 3 * 2 * 16384 * 4096),
    "D": (32 * 2 * 8192 * 128 * 8192, 32 * 2 * (2 * 8192 * 128 + 8192 * 8192)),
    "E": (32 * 4 * 8192 * 128 * 8192, 32 * 2 * 4 * 8192 * 128),
    "F": (4 * 4096, 2 * 3 * 4096),
}
FLOORS = {
    "compute": "Its FLOPs at the peak take less time than its bytes at the bandwidth, or than a launch. Divide FLOPs "
               "by bytes and compare with the ridge.",
    "memory": "Its bytes at the bandwidth take less time than something else does. How many bytes are moved if each "
              "input is read once and each result written once, and how long is that?",
    "overhead": "There is far more than 5 µs of work in it. How many elements does it touch?",
}


def highest_floor(name: str) -> str:
    flops, moved = PLACED[name]
    floors = {"compute": flops / H100.peak("bf16"), "memory": moved / H100.bandwidth, "overhead": LAUNCH}
    return max(floors, key=floors.get)


def placed(name: str) -> Pick:
    return Pick(options={floor: floor for floor in FLOORS}, right=lambda: highest_floor(name), why=FLOORS)


def drawn_model():
    """Linear layers of random widths, one used twice, the first or a middle one frozen; and how often it was run."""
    import torch

    class Drawn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [random.randint(3, 40) for _ in range(3)]
            self.first = torch.nn.Linear(widths[0], widths[1], bias=random.random() < 0.5)
            self.twice = torch.nn.Linear(widths[1], widths[1])
            self.frozen = torch.nn.Linear(widths[1], widths[2]).requires_grad_(False)
            self.last = torch.nn.Linear(widths[2], 5)
            self.norm = torch.nn.LayerNorm(widths[1])
            self.runs = 0

        def forward(self, x):
            self.runs += 1
            x = self.twice(self.norm(self.twice(self.first(x)).tanh()))
            return self.last(self.frozen(x).tanh())

    model = Drawn()
    return model, torch.randn(random.randint(2, 5), random.randint(6, 9), model.first.in_features)


def counted(model, x) -> int:
    """PyTorch's own count of a forward and a backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(x).square().mean().backward()
    model.zero_grad()
    return counter.get_total_flops()


def run_count_flops(function):
    for what, freeze_first in (("a model with one frozen layer", False), ("and with its first layer frozen", True)):
        model, x = drawn_model()
        model.first.requires_grad_(not freeze_first)
        wanted = counted(model, x)
        model.runs = 0
        got = function(model, x)
        yield expect_close(f"{what}: your count ÷ PyTorch's", got / wanted if isinstance(got, int | float) else got,
                           1.0, atol=0, note="Each use of a layer is one product forward. Backward makes one for the "
                                        "gradient of its input and one for that of its weight: where each is needed. "
                                        "How many rows does a product have when x is [B, T, features]?")
        hooks = sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in model.modules())
        yield expect_equal(f"{what}: hooks left behind", hooks, 0,
                           note="The next count of this model would count everything twice. What removes a hook, also "
                                "when the forward pass fails?")
        yield expect_at_most(f"{what}: forward passes", model.runs, 1, note="One forward pass sees every product.")
        yield expect_equal(f"{what}: gradients left behind", sum(p.grad is not None for p in model.parameters()), 0,
                           note="No backward pass is needed: which tensors want gradients is known in forward.")


def broken_count(times=lambda x, w: 1 + x.requires_grad + w.requires_grad, rows=lambda x: x[..., 0].numel(),
                 once=False, keep=False, grad=True):
    def count_flops(model, x):
        import torch

        uses, hooks = [], []
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                hooks.append(layer.register_forward_hook(lambda layer, inputs, output: uses.append(
                    (layer, 2 * rows(inputs[0]) * layer.weight.numel() * times(inputs[0], layer.weight)))))
        with torch.set_grad_enabled(grad):
            model(x)
        for hook in [] if keep else hooks:
            hook.remove()
        return sum(dict(uses).values() if once else (flops for _, flops in uses))
    return count_flops


def by_running(model, x):
    wanted = counted(model, x)
    model(x).sum().backward()
    return wanted


STEP, GPUS, SEQUENCES, SEQ = 24.75, 64, 64, 8192  # a published run: B01, 331 tokens/s a GPU
RATE = SEQUENCES * SEQ / STEP / GPUS
LLAMA_70B, A100 = shape("llama-3.1-70b"), gpu("a100-80")


def used(rate: float = RATE, convention: str = "palm"):
    return mfu(LLAMA_70B, A100, rate, SEQ, convention=convention, recompute="full")


LOGS = {  # model, card, precision, sequence, tokens/s a GPU, what the dashboard prints in per cent
    "A": ("llama-2-13b", "a100-80", "bf16", 4096, 2162, 61.1),
    "B": ("llama-3.1-8b", "h100-sxm", "fp8", 8192, 14451, 37.6),
    "C": ("llama-3.1-8b", "h100-sxm", "bf16", 8192, 6667, 39.0),
    "D": ("llama-3.1-70b", "a100-80", "bf16", 8192, 331, 69.0),
}
CONVENTION_WHY = {
    "palm": "Under palm, with every parameter and the whole of attention, this log gives another figure: compute it.",
    "no-embedding": "Without the input embedding this log gives another figure: compute it.",
    "causal": "With half of attention left out this log gives another figure: compute it.",
    "recomputed": "With a second forward pass counted this log gives a larger figure: compute it.",
}


def figures(name: str) -> dict[str, float]:
    """The per cent that each convention gives for a log."""
    model, card, precision, seq, rate, _ = LOGS[name]
    each = {c: mfu(shape(model), gpu(card), rate, seq, 1, precision, c, "full") for c in CONVENTIONS}
    return {c: 100 * u.mfu for c, u in each.items()} | {"recomputed": 100 * each["palm"].hfu}


def convention_of(name: str) -> str:
    given = figures(name)
    return min(given, key=lambda convention: abs(given[convention] - LOGS[name][-1]))


def log_part(name: str) -> Pick:
    return Pick(options={key: key for key in CONVENTION_WHY}, right=lambda: convention_of(name), why=CONVENTION_WHY)


WRONG_WITH = {"A": "sparse peak", "B": "another card's peak", "C": "no synchronisation",
              "D": "another precision's peak", "E": "first call", "F": "nothing"}
WRONG_WHY = {
    "sparse peak": "The sparse peak is twice the dense one: it makes a figure half as large, never larger.",
    "another card's peak": "Which two cards are there, and what is the ratio of their peaks? It does not give this.",
    "another precision's peak": "Which precision would explain the figure, and is there any sign that it was used?",
    "no synchronisation": "Without waiting, times come out too short. Is there a time here that is too short for the "
                          "work?",
    "first call": "One slow call in an average explains figures that are too slow, and not by a fixed factor.",
    "nothing": "Two figures that should agree do not, or one cannot be: compute what follows from what is known.",
}


def wrong_part(name: str) -> Pick:
    return Pick(options={key: key for key in WRONG_WHY}, right=WRONG_WITH[name], why=WRONG_WHY)


EXERCISES = (
    Number("02.1", "How many rows?", unit="rows", within=0.02, expected=lambda: turning_rows(RIDGE),
           misconceptions=(
               Misconception(RIDGE, "That is the ridge itself: it leaves out that input and result are moved too."),
               Misconception(lambda: turning_rows(2 * RIDGE), "That takes the sparse peak, or 4 bytes an element."),
               Misconception(2 * RIDGE, "In 16 bits a row is about one FLOP a byte, not half of one."),
               Misconception(RIDGE / 2, "A multiply-add is two FLOPs, and an element two bytes: they cancel.")),
           hints=("At which FLOPs a byte do both floors of this card have the same height?",
                  "I = 2mkn / (2 · (mk + kn + mn)). Divide above and below by mkn: what is 1/I?",
                  "1/I = 1/m + 1/k + 1/n with k = n = 4096. Solve for m at I = 989e12 / 3.35e12.")),
    Parts("02.2", "Six operations on an H100", parts={name: placed(name) for name in PLACED},
          hints=("For each: how many FLOPs, how many bytes, and how long would each take alone?",
                 "The ridge of this card is near 300 FLOPs a byte. A linear layer in 16 bits has about one a row.",
                 "D writes 32 · 8192 · 8192 scores of two bytes. E does D's FLOPs twice and moves only queries, keys, "
                 "values and the result. F moves a few KiB.")),
    Code("02.3", "Mend a benchmark", run=run_seconds_of,
         broken={"as it was": (broken_seconds(False, False, False, statistics.fmean), "A launch was timed"),
                 "never waits": (broken_seconds(wait=False), "A launch was timed"),
                 "no warm-up": (broken_seconds(warm=False), "How many of them does the caller tell you"),
                 "the same input": (broken_seconds(cycle=False), "still in the cache"),
                 "mean": (broken_seconds(middle=statistics.fmean), "Which figure does not mind"),
                 "least, which the first cached call gives": (broken_seconds(cycle=False, middle=min), "in the cache"),
                 "slowest": (broken_seconds(middle=max), "Which figure does not mind"),
                 "one long queue": (one_long_queue, "more than one call was in the queue")},
         hints=("What is true on the device when clock() is read the first time, and what when it is read the second "
                "time?",
                "Four faults: no wait, no warm-up, the same input each time, and an average that a stumble moves.",
                "itertools.cycle(inputs); `warmup` calls and synchronize(); then for each of `repeats`: begin = "
                "clock(); fn(next(turn)); synchronize(); append clock() - begin. Return the median.")),
    Code("02.4", "Count the FLOPs", run=run_count_flops,
         broken={"forward only": (broken_count(lambda x, w: 1), "Backward makes one"),
                 "six, always": (broken_count(lambda x, w: 3), "where each is needed"),
                 "rows of the first dimension": (broken_count(rows=len), "How many rows"),
                 "each layer once": (broken_count(once=True), "Each use of a layer"),
                 "under no_grad": (broken_count(grad=False), "where each is needed"),
                 "leaves its hooks": (broken_count(keep=True), "The next count of this model"),
                 "runs backward": (by_running, "No backward pass is needed")},
         hints=("How does a hook on a layer learn how many rows passed through it?",
                "register_forward_hook(fn) calls fn(layer, inputs, output). inputs[0].numel() is rows × in_features; "
                "requires_grad of the input and of the weight say which products backward makes.",
                "2 · inputs[0].numel() · layer.out_features, times 1 + inputs[0].requires_grad + "
                "layer.weight.requires_grad. Remove each hook in a `finally`.")),
    Parts("02.5", "From a log line", parts={
        "tokens/s a GPU": Quantity(expected=RATE, unit="tokens/s", within=2e-3, misconceptions=(
            Misconception(RATE * GPUS, "That is of all 64 GPUs together."),
            Misconception(SEQ / STEP / GPUS, "A step has 64 sequences of that length."))),
        "MFU": Quantity(expected=lambda: 100 * used().mfu, unit="%", within=2e-3, misconceptions=(
            Misconception(lambda: 100 * used().hfu, "That counts the second forward pass: an HFU."),
            Misconception(lambda: 50 * used().mfu, "That divides by twice the dense peak."),
            Misconception(lambda: 600 * RATE * parameters(LLAMA_70B).total / A100.peak("bf16"),
                          "That leaves out attention."),
            Misconception(lambda: 100 * used(convention="no-embedding").mfu, "That is no-embedding, not palm."),
            Misconception(lambda: 100 * used(convention="causal").mfu, "That is causal: palm has all of attention."),
            Misconception(lambda: 6400 * used().mfu, "That is the work of 64 GPUs on the peak of one."))),
        "HFU": Quantity(expected=lambda: 100 * used().hfu, unit="%", within=2e-3, misconceptions=(
            Misconception(lambda: 100 * used().mfu, "That is the MFU. What ran a second time?"),
            Misconception(lambda: 200 * used().mfu, "Only the forward pass runs again, a third of the FLOPs."),
            Misconception(lambda: 150 * used().mfu, "Forward is a third of a step, not half of it."))),
    }, hints=("Tokens of a step, seconds of a step, GPUs: which quotient is asked for first?",
              "mfu(shape(\"llama-3.1-70b\"), gpu(\"a100-80\"), tokens_per_second, 8192, convention=\"palm\", "
              "recompute=\"full\") has .mfu and .hfu, as fractions.",
              "64 · 8192 tokens in 24.75 s on 64 GPUs. Full recomputation makes 8 of 6.")),
    Parts("02.6", "Which convention?", parts={name: log_part(name) for name in LOGS},
          hints=("You know the tokens a second. What would each convention print?",
                 "Four logs, four conventions: sixteen numbers, and a loop over CONVENTIONS.",
                 "mfu(shape(model), gpu(card), rate, seq, 1, precision, convention, \"full\") has .mfu; palm's .hfu is "
                 "`recomputed`.")),
    Parts("02.7", "What is wrong with it?", parts={name: wrong_part(name) for name in WRONG_WITH},
          hints=("Which of the figures cannot be, and which are merely not what you expected?",
                 "A fixed factor points at a peak: which ratio of peaks is it? A time points at a clock: is it too "
                 "long or too short for its work?",
                 "gpu(name).tflops has the dense peaks. 2 · 4096³ FLOPs in 0.03 ms are how many TFLOP/s? Each "
                 "explanation fits one figure.")),
    Choice("02.8", "Twice the FLOP/s",
           options={"a": "all of them, by a factor of two",
                    "b": "those that were right of the old ridge; by the full factor only those that are right of the "
                         "new one",
                    "c": "those that were left of the old ridge, because they had been waiting",
                    "d": "those right of the old ridge, all by a factor of two"},
           right="b",
           why={"a": "An operation that waits for memory still does: the bandwidth is the same.",
                "c": "They wait for bytes, and the bytes do not come faster.",
                "d": "The ridge has moved to the right. What about an operation that lies between the old one and the "
                     "new one?"},
           hints=("Draw both roofs: which part of the line has moved?",
                  "An operation just right of the old ridge: how far may it rise before it meets the slanted line?")),
)
