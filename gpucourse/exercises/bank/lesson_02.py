"""Lesson 02, timing and roofline."""

import statistics

from gpucourse.exercises.bank.played_device import broken_seconds, one_long_queue, run_seconds_of
from gpucourse.exercises.bank.timing_floors import RIDGE, SIX, faster, turning_rows
from gpucourse.exercises.bank.timing_flops import broken_count, by_running, run_count_flops
from gpucourse.exercises.bank.timing_logs import A100, GPUS, LLAMA_70B, LOGS, RATE, SEQ, STEP, in_palm, log_part, used
from gpucourse.exercises.bank.timing_verdicts import MENDED, WRONG_WITH, wrong_part
from gpucourse.exercises.kinds import Code, Guess, Misconception, Number, Parts, Pick, Quantity
from gpucourse.predict import parameters

GUESSES = (
    Guess("02.g1", ("linear, many rows", "linear, one row", "residual add"), "ms"),
    Guess("02.g2", ("MFU against the measured ceiling",), "%"),
)
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
    Parts("02.2", "Six operations on an H100", parts=SIX,
          hints=("For each: how many FLOPs, how many bytes, and how long would each take alone?",
                 "The ridge of this card is near 300 FLOPs a byte. A linear layer in 16 bits has about one a row.",
                 "D writes 32 · 8192 · 8192 scores of two bytes. E does D's FLOPs twice and moves only queries, keys, "
                 "values and the result. F moves a few KiB. µs: FLOPs / 989e6, bytes / 3.35e6, 5; the largest.")),
    Code("02.3", "Mend a benchmark", run=run_seconds_of,
         broken={"as it was": (broken_seconds(False, False, False, statistics.fmean), "A launch was timed"),
                 "never waits": (broken_seconds(wait=False), "A launch was timed"),
                 "no warm-up": (broken_seconds(warm=False), "How many of them does the caller tell you"),
                 "the same input": (broken_seconds(cycle=False), "still in the cache"),
                 "mean": (broken_seconds(middle=statistics.fmean), "Which figure does not mind"),
                 "least, which the first cached call gives": (broken_seconds(cycle=False, middle=min), "in the cache"),
                 "least": (broken_seconds(middle=min), "Which figure does not mind"),
                 "slowest": (broken_seconds(middle=max), "Which figure does not mind"),
                 "one long queue": (one_long_queue, "more than one call was in the queue")},
         hints=("What is true on the device when clock() is read the first time, and what when it is read the second "
                "time?",
                "Four faults: no wait, no warm-up, the same input each time, and an average that one odd call moves.",
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
    Parts("02.6", "Which convention?",
          parts={name: log_part(name) for name in LOGS} | {f"{name}, palm": in_palm(name) for name in ("B", "C")},
          hints=("You know the tokens a second. What would each convention print?",
                 "Four logs, four conventions: sixteen numbers, and a loop over CONVENTIONS.",
                 "mfu(shape(model), gpu(card), rate, seq, 1, precision, convention, \"full\") has .mfu; palm's .hfu is "
                 "`recomputed`.")),
    Parts("02.7", "What is wrong with it?", parts={name: wrong_part(name) for name in WRONG_WITH} | MENDED,
          hints=("Which of the figures cannot be, and which are merely not what you expected?",
                 "A fixed factor points at a peak: which ratio of peaks is it? A time points at a clock: is it too "
                 "long or too short for its work?",
                 "gpu(name).tflops has the dense peaks. 2 · 4096³ FLOPs in 0.03 ms are how many TFLOP/s? A hundred "
                 "calls took 100 · 20 ms: what is left without the 99 short ones? Each explanation fits one figure.")),
    Parts("02.8", "Twice the FLOP/s", parts={
        "which": Pick(
            options={"a": "all of them, by a factor of two",
                     "b": "those that were right of the old ridge; by the full factor only those that are right of the "
                          "new one",
                     "c": "those that were left of the old ridge, because they had been waiting",
                     "d": "those right of the old ridge, all by a factor of two"},
            right="b",
            why={"a": "An operation that waits for memory still does: the bandwidth is the same.",
                 "c": "They wait for bytes, and the bytes do not come faster.",
                 "d": "The ridge has moved to the right. What about an operation that lies between the old one and the "
                      "new one?"}),
        **{f"{intensity} FLOPs a byte, ×": faster(intensity) for intensity in (120, 240, 480)},
    }, hints=("Draw both roofs: which part of the line has moved?",
              "An operation just right of the old ridge: how far may it rise before it meets the slanted line?",
              "min(300, 2 · I) TFLOP/s before, min(600, 2 · I) after, for I FLOPs a byte.")),
)
