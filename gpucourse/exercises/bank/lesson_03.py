"""Lesson 03, activations."""

import math

from gpucourse.exercises.bank.activations_dropout import by_the_library, remake, run_recomputed
from gpucourse.exercises.bank.activations_levers import CASES, by_key, lever_part, new_peak, run_rank
from gpucourse.exercises.bank.activations_loss import chunks, deaf_loss, loss_coefficient, run_lean_loss, whole_loss
from gpucourse.exercises.bank.activations_placement import by_claim, cheapest, last_first, run_place
from gpucourse.exercises.bank.activations_saved import broken_saves, run_llama_saves
from gpucourse.exercises.kinds import Code, Guess, Misconception, Parts, Quantity

GUESSES = (
    Guess("03.g1", ("nothing recomputed", "products and attention kept", "all recomputed"), "MiB"),
    Guess("03.g2", ("step, all recomputed",), "× the plain step"),
)


def coefficient(*misconceptions: Misconception, **how: bool) -> Quantity:
    return Quantity(expected=lambda: loss_coefficient(**how), unit="bytes", within=0, misconceptions=misconceptions)


LOGITS = {
    "A": coefficient(
        Misconception(4, "The logits alone. What does cross-entropy make of them, and what does its backward make?"),
        Misconception(8, "That is the end of forward: logits and log-probabilities. Backward makes two more."),
        Misconception(12, "That is right where nobody holds the logits. Here the loop has a name for them."),
        held=True),
    "B": coefficient(
        Misconception(4, "One tensor. Log-probabilities are saved, and backward makes two tensors of that size."),
        Misconception(8, "Saved log-probabilities and one gradient: backward needs the one that came and the one it "
                         "makes."),
        Misconception(16, "That counts the logits. After forward nothing holds them: log-softmax saved its result.")),
    "C": coefficient(
        Misconception(8, "Half of everything: but autocast runs the loss in fp32, on an fp32 copy of the logits."),
        Misconception(16, "The logits that are held have two bytes each here."),
        Misconception(12, "That forgets the logits that the loop holds, two bytes each."),
        autocast=True, held=True),
    "D": coefficient(
        Misconception(16, "The probabilities are one more tensor of that size, alive until the name goes."),
        Misconception(12, "Two names hold a tensor of that size each: logits and probabilities."),
        held=True, extra=True),
    "E": coefficient(
        Misconception(12, "No backward comes: its two tensors are never made."),
        Misconception(4, "The log-probabilities are made from the logits while those still exist."),
        evaluate=True),
}

CHAINS = {"A": (64, 1), "B": (32, 26), "C": (96, 6)}


def spacing(length: int, ratio: float) -> int:
    return min(range(1, length + 1), key=lambda K: math.ceil(length / K) + K * ratio)


def chain(name: str, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: spacing(*CHAINS[name]), unit="blocks", within=0, misconceptions=misconceptions)


SPACINGS = {
    "A": chain("A", Misconception(1, "An input for every block: 64 of them. Fewer inputs would hold less."),
               Misconception(64, "Everything comes back at once, which is what keeping everything takes.")),
    "B": chain("B", Misconception(round(math.sqrt(32)), "The square root of the depth. K blocks that come back take 26 "
                                                        "times as much each as the inputs that are spared."),
               Misconception(2, "One block more to bring back costs 26 inputs, and 16 are spared.")),
    "C": chain("C", Misconception(round(math.sqrt(96)), "That is √L, for a ratio of 1. Here a block saves 6 times its "
                                                        "input."),
               Misconception(1, "Try two or three: 96 inputs are many when a block saves only six times its own.")),
}

EXERCISES = (
    Code("03.1", "What a Llama block saves", run=run_llama_saves,
         broken={"norm like LayerNorm": (broken_saves(norms=2), "operation by operation"),
                 "silu not saved": (broken_saves(silu=3), "operation by operation"),
                 "no keys": (broken_saves(keys=1), "operation by operation"),
                 "statistics with two bytes": (broken_saves(statistics=2), "operation by operation"),
                 "results that are only added left out": (broken_saves(sums=False), "what is *made* by each product"),
                 "no input": (broken_saves(stream=0), "the block's input")},
         hints=("Write the block as a list of operations. For each: does its derivative depend on its inputs, on its "
                "result, or on neither?",
                "Norms: input, normalised, result, and one number a token. Attention: q, k, v, result and 4a. MLP: "
                "gate, silu(gate), up and their product.",
                "none: n·(2·(12h + 4) + 4·(2h + 2k) + 4a + 16f). op: the input, and what q, k, v, attention, out, "
                "gate, up and down make, and 4a.")),
    Parts("03.2", "Who holds the logits?", parts=LOGITS,
          hints=("List the tensors of that size in the order in which they are made: which are saved, which are "
                 "temporary, which have a name?",
                 "Logits; log-probabilities, which are saved; in backward the gradient of the log-probabilities, then "
                 "the gradient of the logits, made while the former and the saved one are alive.",
                 "Held by a name: + 4, or + 2 in bf16. Without backward: only what forward has at once.")),
    Code("03.3", "A chunked cross-entropy that computes nothing twice", run=run_lean_loss,
         broken={"the whole at once": (whole_loss, "What keeps a part after its turn"),
                 "parts without forgetting": (chunks(again=False), "What keeps a part after its turn"),
                 "recomputed": (chunks(), "Each part's logits are made twice"),
                 "mean of means": (chunks(mean_of_means=True), "Divide once"),
                 "counts the ignored": (chunks(count_all=True), "Divide once"),
                 "deaf to what arrives": (deaf_loss, "times what arrives")},
         hints=("The loss is the last thing in forward. What of its gradient is known before backward begins?",
                "All but one factor: what arrives. Write a torch.autograd.Function whose forward makes each part's "
                "logits and, with torch.autograd.grad, the part's gradients.",
                "In forward: with torch.enable_grad(), on detached x and w: cross_entropy(x @ w.T, t, "
                "reduction=\"sum\") / valid, then torch.autograd.grad(…, (x, w)). Save the rows' gradients joined, "
                "and the weight's summed; backward returns each times what arrives, and None for the rest.")),
    Code("03.4", "Checkpoints under a budget", run=run_place,
         broken={"by the plan's own sum": (lambda blocks, budget: cheapest(blocks, budget, by_claim),
                                           "The plan's own sum may be within it"),
                 "recompute all": (lambda blocks, budget: ["full"] * len(blocks), "A cheaper plan fits"),
                 "the last ones first": (last_first, "A cheaper plan fits"),
                 "keep all": (lambda blocks, budget: ["none"] * len(blocks), "The plan's own sum may be within it"),
                 "a word short": (lambda blocks, budget: ["full"] * (len(blocks) - 1), "none or full for each block")},
         hints=("At which moments can the peak be? There are as many as blocks.",
                "When backward is at block i: the blocks below hold what the plan says, block i is there in full, and "
                "its work comes on top. Nothing above is left.",
                "peak = max over i of sum(held[:i]) + saved[i] + work[i]. With at most eight blocks, try all plans: "
                "itertools.product((\"none\", \"full\"), repeat=len(blocks)).")),
    Code("03.5", "Mend the recomputation", run=run_recomputed,
         broken={"as it was": (remake(), "The second forward drew other masks"),
                 "the state not put back": (remake("not put back"), "in which did it leave it"),
                 "a constant seed": (remake("constant"), "Forward should be the function"),
                 "nothing recomputed": (remake(record=True), "autograd was recording"),
                 "the library's": (by_the_library, "Write what it does")},
         hints=("What does the second forward read that is not in x and not in the weights?",
                "torch.get_rng_state() before the first forward; in backward set it, run, and put back the state that "
                "you found.",
                "forward: ctx.state = torch.get_rng_state() before function(x). backward: now = get_rng_state(), "
                "set_rng_state(ctx.state), y = function(x), "
                "set_rng_state(now), torch.autograd.backward(y, gradient).")),
    Code("03.6", "Rank the levers", run=run_rank,
         broken={"by bytes alone": (by_key(lambda saved, cost: saved), "comes before all others"),
                 "by time alone": (by_key(lambda saved, cost: -cost), "by what they save"),
                 "the ratio with its sign": (by_key(lambda saved, cost: saved / cost), "comes before all others"),
                 "free first, then by bytes": (by_key(lambda saved, cost: (cost <= 0, saved)), "bytes for each"),
                 "levers that take memory too": (by_key(lambda saved, cost: (cost <= 0, saved / cost), every=True),
                                                 "takes more memory than it gives")},
         hints=("What does saved / cost say for a lever that makes the step faster?",
                "Two groups: cost at most 0, ranked by what they save; then the rest, by saved / cost.",
                "Keep those with peak < plain[0]; sort each group with reverse=True; join the lists.")),
    Parts("03.7", "How far apart?", parts=SPACINGS,
          hints=("Write the sum for K and for K + 1. What is spared, what is added?",
                 "Without rounding the least is at K = √(L / ratio).",
                 "min(range(1, L + 1), key=lambda K: math.ceil(L / K) + K * ratio)")),
    Parts("03.8", "Which lever moves the peak?",
          parts={name: lever_part(name) for name in CASES} | {
              f"{name}, new peak in GiB": new_peak(name) for name in ("A", "B", "D")},
          hints=("Which instant leads in each job? predict.memory(shape(\"gpt2-medium\"), Job(16, 1024)) shows it.",
                 "A lever lowers what is its own, at each instant. The new peak is the largest of what it lowered and "
                 "of all that it did not touch.",
                 "Compare three ledgers a job; for parts, take the instant after the loss as the new peak.")),
)
