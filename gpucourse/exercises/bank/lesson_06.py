"""Lesson 06, KV cache and serving."""

from gpucourse.exercises.bank.serving_admission import broken_admit, run_admit
from gpucourse.exercises.bank.serving_attention import broken_attend, run_attend
from gpucourse.exercises.bank.serving_blocks import broken_grow, run_grow
from gpucourse.exercises.bank.serving_bytes import BYTES, FREED, WORK, least_ms
from gpucourse.exercises.bank.serving_caps import example_load, fastest_cap, largest_cap
from gpucourse.exercises.bank.serving_quantiser import broken_quantise, run_quantise
from gpucourse.exercises.kinds import Code, Guess, Misconception, Number, Parts, Pick
from gpucourse.predict.admission import greedy, reserving
from gpucourse.predict.paging import blocks_for

GUESSES = (Guess("06.g1", ("time without a cache / with", "tokens/s, 32 requests / 1"), "×"),
           Guess("06.g2", "8B on a 24 GB card", "requests"))
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
    Parts("06.6", "Compute or memory", parts={name: least_ms(name) for name in WORK},
          hints=("For each: which bytes are read, and how many FLOPs are done with them?",
                 "Weights: 2 bytes a parameter, read once a step for all tokens of the step; 2 FLOPs a parameter and "
                 "token. In decode each request reads its own cache besides.",
                 "ms of compute: (2·N + 4·L·h·seen) · tokens / 989e9. ms of memory: (2·N + requests · held · KV) / "
                 "3.35e9. The larger of the two.")),
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
    Parts("06.8", "Refused at 29,000, running at 35,000", parts={
        "why": Pick(
            options={"a": "a longer maximum makes the server choose a smaller format for keys and values",
                     "b": "beyond a length the prompt is prefilled in pieces, so the activations to be kept free are "
                          "smaller, and the cache gets what they leave",
                     "c": "a longer maximum makes the blocks larger, so that fewer tokens are wasted",
                     "d": "with a longer maximum fewer requests run at once, so each finds more of the cache"},
            right="b",
            why={"a": "The bytes a token follow from the model and the dtype, which did not change.",
                 "c": "Blocks stayed at 16 tokens, and a request wastes less than one of them.",
                 "d": "The refusal is about one request alone: does the whole cache hold it?"}),
        **FREED,
    }, hints=("The cache gets what is left. Of what, after what is taken off?",
              "Weights do not depend on the maximum. The reserve is for the activations of the largest prefill.",
              "One request needs its tokens × 128 KiB. At 29,000 the cache had 2.89 GiB.")),
)
