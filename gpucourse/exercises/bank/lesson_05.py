"""Lesson 05, batch and accumulation."""

from gpucourse.catalog import published
from gpucourse.exercises.bank.accumulation_epoch import (
    as_if_full,
    by_means,
    by_means_always_full,
    by_tokens,
    drops_the_last,
    off_by_one,
    run_train,
    train_by,
    windowed,
)
from gpucourse.exercises.bank.accumulation_model import a_sum, every_position, mean_of_means, whole
from gpucourse.exercises.bank.accumulation_price import pieces_only, price_by, run_price_of
from gpucourse.exercises.bank.accumulation_schedule import run_schedule, schedule_by
from gpucourse.exercises.bank.accumulation_window import (
    keeps_graphs,
    means_times_counts,
    one_graph,
    returns_a_tensor,
    run_accumulate_window,
)
from gpucourse.exercises.kinds import Code, Guess, Misconception, Parts, Pick, Quantity
from gpucourse.predict.critical_batch import samples, steps

GUESSES = (
    Guess("05.g1", ("step time, in pieces / whole", "peak memory, in pieces / whole"), "×"),
    Guess("05.g2", ("noise scale before training", "noise scale after training"), "sequences"),
)

SHORT, LONG = 10, 100

WEIGHTS = {
    "mean of means, short sample": Quantity(expected=1 / SHORT / 2, unit="", within=1e-3, misconceptions=(
        Misconception(1 / SHORT, "That is its weight in its own mean. The step takes the mean of two means."),
        Misconception(1 / (SHORT + LONG), "That is the weight in one batch of two. Here each mean is taken first."))),
    "mean of means, long sample": Quantity(expected=1 / LONG / 2, unit="", within=1e-3, misconceptions=(
        Misconception(1 / LONG, "That is its weight in its own mean. The step takes the mean of two means."),
        Misconception(1 / (SHORT + LONG), "That is the weight in one batch of two. Here each mean is taken first."))),
    "one batch of two, either sample": Quantity(expected=1 / (SHORT + LONG), unit="", within=1e-3, misconceptions=(
        Misconception(1 / (SHORT + LONG) / 2, "The sum over both samples is divided once, by all tokens: by no 2."),
        Misconception(1 / SHORT / 2, "That is a mean of means. One batch has one mean, over all of its tokens."))),
    "two ranks, each divides by 110": Quantity(expected=1 / (SHORT + LONG) / 2, unit="", within=1e-3, misconceptions=(
        Misconception(1 / (SHORT + LONG), "DDP does not add the ranks' gradients, it averages them: what does that do "
                                          "to a sum that is divided already?"),
        Misconception(1 / SHORT / 2, "Each rank divides by 110, not by its own tokens."))),
}

RUNS = {row["model"]: row for row in published("throughput") if row["case"] == "B10"}
TOKENS_A_STEP, STEPS, WARM_UP, RATE, TIMES = 524_288, 18_865, 700, 6e-4, 4


def accumulation(row) -> float:
    return int(row["global_batch"]) / (int(row["micro_batch"]) * int(row["gpus"]))


def accumulation_part(model: str) -> Quantity:
    row = RUNS[model]
    alone = int(row["global_batch"]) / int(row["micro_batch"])
    return Quantity(expected=lambda: accumulation(row), unit="micro-batches", within=0, misconceptions=(
        Misconception(alone, "That is on one GPU. How many take part?"),
        Misconception(alone * int(row["seq"]) / int(row["gpus"]), "Tokens a step are divided by *tokens* of a "
                                                                  "micro-batch, sequences by sequences.")))


def seconds_a_step(model: str) -> float:
    row = RUNS[model]
    tokens = int(row["global_batch"]) * int(row["seq"])
    return tokens / (float(row["tokens_per_second_per_gpu"]) * int(row["gpus"]))


OLD, NEW, NOISE = 0.5, 1.0, 1.5  # millions of tokens

EXERCISES = (
    Parts("05.1", "Ten and a hundred", parts=WEIGHTS,
          hints=("Write the step's gradient out as a sum over the 110 tokens. What stands before each?",
                 "A mean divides by its own count, and a mean of two means by two more.",
                 "1/(10·2), 1/(100·2), 1/110; and DDP's average over two ranks divides the last once more.")),
    Code("05.2", "Token-weighted accumulation", run=run_accumulate_window,
         broken={"mean of means": (mean_of_means, "that is a mean of means"),
                 "counts what is not trained": (every_position, "nothing is learnt from"),
                 "not divided": (a_sum, "has not been divided"),
                 "means times counts": (means_times_counts, "The mean over no token is 0/0"),
                 "one graph for all": (one_graph, "One backward pass for each micro-batch"),
                 "all graphs first": (keeps_graphs, "What holds the others"),
                 "one big batch": (whole, "One backward pass for each micro-batch"),
                 "a tensor": (returns_a_tensor, "a tensor still holds a graph")},
         hints=("By which number is a token's loss divided in the one large batch, and when is that number known?",
                "Count the targets that are not −100 over the whole window first. Then, micro-batch by micro-batch, "
                "the sum of the losses divided by that count, and backward().",
                "F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=\"sum\") / "
                "count, backward(), and add .item() to a float.")),
    Code("05.3", "A short last window", run=run_train,
         broken={"off by one": (train_by(by_tokens, off_by_one), "the condition is off by one"),
                 "drops the last window": (train_by(by_tokens, drops_the_last), "never stepped"),
                 "mean of means": (windowed(by_means), "that is a mean of means"),
                 "always divides by the full window": (windowed(by_means_always_full), "as if it were full"),
                 "tokens as if full": (windowed(as_if_full), "as if every window were full"),
                 "never clears": (windowed(by_tokens, clear=False), "gradients that start from nothing"),
                 "a step too many": (train_by(by_tokens, extra=True), "nothing new behind them"),
                 "reads the epoch ahead": (train_by(by_tokens), "read ahead of the training")},
         hints=("Three things are wrong: what is divided by what, when a step is taken, and what happens to the end.",
                "Take the stream in windows: itertools.islice(stream, accumulate) gives the next ones, and fewer at "
                "the end. A window in a list can be counted before its first backward pass.",
                "while window := list(itertools.islice(stream, accumulate)): count its trained tokens; for each, "
                "sum / count, backward(); then step() and zero_grad().")),
    Code("05.4", "The price, measured", run=run_price_of,
         broken={"one after the other": (price_by(order="blocks"), "Which neighbours are equally slow"),
                 "mean": (price_by(middle="mean"), "what does not mind a bad pair"),
                 "first calls": (price_by(warm=False), "first calls are slow"),
                 "upside down": (price_by(upside_down=True), "Which neighbours"),
                 "a piece against the whole": (pieces_only, "Both are steps over the same sequences")},
         hints=("If all of one kind are timed first and then all of the other, which kind meets the slower machine?",
                "Time one of each in turn, take the ratio of each pair, and the median of the ratios.",
                "seconds(micro_batch), seconds(batch) once for nothing; then in each round "
                "seconds(micro_batch) / seconds(batch); return the middle of the sorted ratios.")),
    Code("05.5", "A schedule under a budget", run=run_schedule,
         broken={"ledger without accumulation": (schedule_by(accumulating=False), "Does the job that you asked"),
                 "rounds up": (schedule_by(exact=False), "is the global batch, exactly"),
                 "forgets the ranks": (schedule_by(ranked=False), "is the global batch, exactly"),
                 "one at a time": (schedule_by(largest=False), "A larger micro-batch fits")},
         hints=("How many sequences fall to one rank, and which micro-batches divide them?",
                "Go through the divisors from the largest down, and ask the ledger about each *with its "
                "accumulation*: gradients stay alive between micro-batches.",
                "share = global_batch // ranks; for micro in range(share, 0, -1): if share % micro == 0 and "
                "predict.memory(shape, job.but(micro_batch=micro, accumulate=share // micro)).peak <= limit: return.")),
    Parts("05.6", "Four times the batch", parts={
        "steps": Quantity(expected=STEPS / TIMES, unit="steps", within=1e-3, misconceptions=(
            Misconception(STEPS, "As many steps of four times the batch read four times the tokens."),
            Misconception(STEPS * TIMES, "The other way round: each step now reads more."))),
        "warm-up steps": Quantity(expected=WARM_UP / TIMES, unit="steps", within=1e-3, misconceptions=(
            Misconception(WARM_UP, "That many steps now warm up over four times the tokens."),
            Misconception(WARM_UP * TIMES, "The other way round: each step now reads more."))),
        "tokens of the warm-up": Quantity(expected=WARM_UP * TOKENS_A_STEP, unit="tokens", within=1e-3, misconceptions=(
            Misconception(WARM_UP * TOKENS_A_STEP * TIMES, "That is what 700 steps of the new batch would read."),
            Misconception(WARM_UP * TOKENS_A_STEP / TIMES, "The tokens are what stays. The steps change."))),
        "learning rate by the square-root rule": Quantity(
            expected=RATE * TIMES**0.5, unit="", within=1e-3, misconceptions=(
                Misconception(RATE * TIMES, "That is the linear rule, of SGD far below the noise scale."),
                Misconception(RATE, "That leaves it alone. Four times the batch has half the noise: what may a step "
                                    "of AdamW do with that?"),
                Misconception(RATE / TIMES**0.5, "A less noisy step can be longer, not shorter."))),
    }, hints=("What stays the same in all of them: steps, or tokens?",
              "Tokens stay. Steps are tokens divided by tokens a step.",
              "18,865/4, 700/4, 700 × 524,288, and 6 · 10⁻⁴ × √4.")),
    Parts("05.7", "Four published set-ups", parts={
        **{model: accumulation_part(model) for model in RUNS},
        "124M, minutes": Quantity(expected=lambda: STEPS * seconds_a_step("gpt2") / 60, unit="minutes", within=2e-3,
                                  misconceptions=(
            Misconception(lambda: STEPS * seconds_a_step("gpt2") / 3600, "That is hours."),
            Misconception(lambda: STEPS * seconds_a_step("gpt2") * 8 / 60, "The eight GPUs take a step together."))),
        "1,558M, hours": Quantity(expected=lambda: 32_000 * seconds_a_step("gpt2-xl") / 3600, unit="hours", within=2e-3,
                                  misconceptions=(
            Misconception(24.0, "That is what the script's own comment says: its sum was made with 2.7 s, beside the "
                                "2.80 s that it states."),
            Misconception(lambda: 32_000 * seconds_a_step("gpt2-xl") * 8 / 3600, "That accumulates twice: a step's "
                          "seconds hold all of its micro-batches already."))),
    }, hints=("A step's tokens are made of micro-batch × sequence × GPUs × accumulation. Which of them is unknown?",
              "524,288 / (64 × 1024 × 8) for the first. Times are steps × seconds: the step's seconds hold everything.",
              "Accumulation: tokens a step / (micro-batch · 1024 · 8), in each of the four.")),
    Parts("05.8", "Twice the GPUs", parts={
        "steps": Quantity(expected=lambda: steps(NEW, NOISE) / steps(OLD, NOISE), unit="×", misconceptions=(
            Misconception(0.5, "Half the steps would be right far below the noise scale. How far below is the new "
                               "batch?"),
            Misconception(lambda: steps(NEW, NOISE), "That is a multiple of the fewest steps of all. The question is "
                                                     "about the old run."),
            Misconception(1.0, "That many steps would be right far above the noise scale."))),
        "tokens": Quantity(expected=lambda: samples(NEW, NOISE) / samples(OLD, NOISE), unit="×", misconceptions=(
            Misconception(1.0, "As many tokens would be right far below the noise scale. How far below is the new "
                               "batch?"),
            Misconception(lambda: samples(NEW, NOISE), "That is a multiple of the fewest tokens of all. The question "
                                                       "is about the old run."),
            Misconception(2.0, "Twice the tokens would be right far above the noise scale."))),
        "interval to infinity": Pick(
            options={"a": "that the gradient is pure noise, and training has converged",
                     "b": "that the windows are too few or too short to tell the signal from nothing",
                     "c": "that the batch should be as large as possible",
                     "d": "that the estimate is biased upwards, so the lower end is the right value"},
            right="b",
            why={"a": "Some resamplings found no signal, others found some: that is about the measurement.",
                 "c": "Infinity comes from dividing by a length that may be nothing, not from a batch.",
                 "d": "Numerator and denominator are unbiased. Which of them is near nothing?"}),
    }, hints=("Both answers are quotients of the same formula at two batches: 1 + noise/batch, and 1 + batch/noise.",
              "Steps: (1 + 1.5/1)/(1 + 1.5/0.5). Tokens: (1 + 1/1.5)/(1 + 0.5/1.5).",
              "The interval is of a quotient. What must |G|² have been in the resamplings that gave infinity?")),
)
