"""Lesson 01, memory anatomy."""

from gpucourse.exercises.bank.memory_evaluation import evaluation, run_evaluate
from gpucourse.exercises.bank.memory_leak import leaky, never_zeroed, returns_a_tensor, run_train
from gpucourse.exercises.bank.memory_ledger import broken_ledger, run_step_ledger
from gpucourse.exercises.bank.memory_messages import MESSAGES, message_part
from gpucourse.exercises.bank.memory_peaks import PEAKS, autocast_pays, largest_batch, peak_part
from gpucourse.exercises.bank.memory_states import STATES
from gpucourse.exercises.kinds import Code, Guess, Misconception, Number, Parts, Pick, Quantity

GUESSES = (Guess("01.g1", ("peak allocated", "activations and temporaries"), "GiB"),)
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
    Parts("01.8", "More memory with autocast", parts={
        "why": Pick(
            options={"a": "bf16 needs padding to multiples of 8, which small batches pay for",
                     "b": "the gradients are kept in both precisions until the optimizer has run",
                     "c": "16-bit copies of the weights are kept for backward, and with few tokens the activations "
                          "that shrink are smaller than those copies",
                     "d": "the optimizer keeps an extra fp32 copy of the weights under autocast"},
            right="c",
            why={"a": "No padding is made. Compare what grows with tokens and what grows with parameters.",
                 "b": "A gradient is cast to fp32 as soon as it is made, layer by layer: no second list exists.",
                 "d": "The weights themselves are fp32 under autocast: there is nothing to keep a copy of."}),
        "tokens": Quantity(expected=autocast_pays, unit="tokens", within=0.01, misconceptions=(
            Misconception(1024, "There it holds less. From where on?"),
            Misconception(512, "There autocast still holds more."))),
    }, hints=("Autocast must give a bf16 matrix product bf16 inputs: both of them.",
              "Compare the line `saved by the blocks` in the ledgers of fp32 and of bf16-autocast at one token.",
              "predict.memory(shape(\"gpt2\"), Job(1, n, precision=p)).memory().at[\"forward\"][\"activations\"] for n "
              "from 1 up, until autocast's is the smaller.")),
)
