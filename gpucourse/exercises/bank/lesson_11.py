"""Lesson 11, sharded data parallel."""

from gpucourse.catalog import shape
from gpucourse.exercises.bank import one_writer, sharded_optimizer, sharded_prepare
from gpucourse.exercises.kinds import Code, Guess, Misconception, Parts, Pick, Quantity
from gpucourse.predict import parameters
from gpucourse.predict.traffic import data_parallel, sent

GUESSES = (Guess("11.g1", ("DDP", "ZeRO-1", "FSDP, weights kept", "FSDP"), "MiB"),)

RANKS, WEIGHT, GRADIENT, OPTIMIZER = 16, 2, 2, 12  # bf16 with an fp32 master copy and fp32 moments
WAYS = {"DDP": "DDP", "FSDP": "FSDP", "neither": "neither"}
TOTAL_GB, MICRO_BATCHES = 52.0, 8  # bf16 gradients of 26 billion parameters


def at_rest(stage: int) -> float:
    parts = (OPTIMIZER, GRADIENT, WEIGHT)  # in the order in which the stages divide them
    return sum(size / RANKS if place < stage else size for place, size in enumerate(parts))


STAGES = ("nothing is divided", "the optimizer's state is divided, and nothing else", "the weights are whole",
          "all is divided")
FORGOTTEN = (
    Misconception(WEIGHT, "That is the weights alone, and whole."),
    Misconception(WEIGHT + GRADIENT, "Weights and gradients: what does AdamW keep?"),
    Misconception(WEIGHT + GRADIENT + 8, "Moments are 8 bytes; what else is kept in fp32?"),
    Misconception(WEIGHT + GRADIENT + 8 / RANKS, "The fp32 master copy belongs to the optimizer."),
)


def bytes_of(stage: int) -> Quantity:
    others = (Misconception(at_rest(other), f"That is stage {other}: {does}.")
              for other, does in enumerate(STAGES) if other != stage)
    return Quantity(expected=lambda: at_rest(stage), unit="bytes", within=1e-3, misconceptions=(*others, *FORGOTTEN))


def outside() -> int:
    count = parameters(shape("llama-3.1-8b"))
    return count.total - count.blocks


def gathered(blocks: int, ends: bool = True) -> float:
    """GB of bf16 weights of that many blocks, and of the outer unit."""
    count = parameters(shape("llama-3.1-8b"))
    return 2 * (outside() * ends + blocks * count.blocks // count.layers) / 1e9


def chosen(right: str, why: dict[str, str]) -> Pick:
    return Pick(options=WAYS, right=right, why=why)


FITS = "It fits on one card with room to spare; what would the gathers be for?"
TOO_MUCH = "16 bytes a parameter on each card: do they fit?"
SITUATIONS = {
    "A": chosen("DDP", {"FSDP": FITS, "neither": FITS}),
    "B": chosen("FSDP", {"DDP": TOO_MUCH, "neither": "Divided by 8, how large is what belongs to parameters?"}),
    "C": chosen("DDP", {"FSDP": "How often would it gather all weights over that link in one step, and how often does "
                                "DDP have to send?", "neither": "24 GB of states fit, and a link this slow asks for "
                                "few bytes: which one sends once a step?"}),
    "D": chosen("neither", {"DDP": TOO_MUCH, "FSDP": "16 bytes × 70 billion against 8 × 80 GB."}),
    "E": chosen("neither", {"DDP": "The states fit. Do the activations?",
                            "FSDP": "Sharding divides states. What does it do to one rank's activations?"}),
    "F": chosen("FSDP", {"DDP": TOO_MUCH, "neither": "Divided by 8, how large is what belongs to parameters?"}),
}


def gradients_sent(passes: int) -> float:
    """GB that a rank sends in reduce-scatters of a step."""
    transfers = data_parallel(26 * 10**9, RANKS, "zero3", gradient=2, passes=passes)
    return sent(t for t in transfers if t.collective == "reduce-scatter") / 1e9


EXERCISES = (
    Parts("11.1", "Bytes at each stage", parts={f"stage {stage}": bytes_of(stage) for stage in range(4)},
          hints=("Three kinds of state: which does each stage divide that the one before did not?",
                 "Optimizer 12 (master copy and two moments), gradients 2, weights 2. Divide one more each time.",
                 "Stage 1 is 2 + 2 + 12/16.")),
    Code("11.2", "A sharded optimizer", run=sharded_optimizer.run, broken=sharded_optimizer.BROKEN,
         hints=("Which part of the weights does this rank move? Everything else it does not need a momentum for.",
                "reduce-scatter the gradient into a part, update momentum and your part of the weights, all-gather.",
                "self.part = weights.chunk(n)[rank] is a view of the weights, so changing it in place changes them; "
                "gather a clone of it into self.weights.")),
    Parts("11.3", "The peak of a wrapping", parts={
        "by block, GB": Quantity(expected=lambda: gathered(2), unit="GB", within=0.002, misconceptions=(
            Misconception(lambda: gathered(1), "The next block is there already."),
            Misconception(lambda: gathered(1, ends=False), "That is one block. The next one is there already, and what "
                                                           "of the outer unit?"),
            Misconception(lambda: gathered(2) / 2, "Those are the parameters: each has two bytes."),
            Misconception(lambda: gathered(2, ends=False), "The outer unit was gathered in forward. When is it freed?"),
            Misconception(lambda: 2 * gathered(2), "Gathered weights are bf16; fp32 are the shards."))),
        "one unit, GB": Quantity(expected=lambda: gathered(32), unit="GB", within=0.002, misconceptions=(
            Misconception(lambda: gathered(32) / 2, "Those are the parameters: each has two bytes."),
            Misconception(lambda: gathered(32, ends=False), "Embedding and head are in the unit too."),
            Misconception(lambda: 2 * gathered(32), "Gathered weights are bf16; fp32 are the shards."))),
    }, hints=("List the units that are gathered at that moment, and count each at 2 bytes a parameter.",
              "By block: the outer unit, the block that works, and the next one.")),
    Parts("11.4", "DDP or FSDP?", parts=SITUATIONS,
          hints=("Three questions in this order: do the states fit on one card? If not, do they fit on all together? "
                 "And is it the states at all?",
                 "Where both would fit, the one that sends less in a step is left.")),
    Code("11.5", "The loss is flat", run=sharded_prepare.run, broken=sharded_prepare.BROKEN,
         hints=("Print id(p) of the model's parameters before and after fully_shard.",
                "The optimizer was built from parameters that the model no longer has.",
                "Shard the layers, shard the model, and build the optimizer last.")),
    Code("11.6", "One writer", run=one_writer.run, broken=one_writer.BROKEN,
         hints=("Who writes, where does the writing go while it is not finished, and who has to wait for it?",
                "dist.get_rank() is the global rank; os.replace puts a finished file in the other's place at once.",
                "Rank 0 saves to path + '.new' and replaces; then every rank, outside of the branch, dist.barrier().")),
    Parts("11.7", "To reduce or not to reduce", parts={
        "kept, every time": Quantity(expected=TOTAL_GB / RANKS, unit="GB", within=0.005, misconceptions=(
            Misconception(TOTAL_GB, "After each reduction a rank keeps its own part only."),)),
        "kept, once": Quantity(expected=TOTAL_GB, unit="GB", within=0.005, misconceptions=(
            Misconception(TOTAL_GB / RANKS, "What is not yet added up cannot be handed out."),
            Misconception(TOTAL_GB * MICRO_BATCHES, "Micro-batches add to the same gradient."))),
        "sent, every time": Quantity(expected=lambda: gradients_sent(MICRO_BATCHES), unit="GB", within=0.005,
                                     misconceptions=(
            Misconception(lambda: gradients_sent(1), "That is one reduction; here there are 8."),
            Misconception(lambda: 2 * gradients_sent(MICRO_BATCHES), "A reduce-scatter is half of an all-reduce."))),
        "sent, once": Quantity(expected=lambda: gradients_sent(1), unit="GB", within=0.005, misconceptions=(
            Misconception(lambda: gradients_sent(MICRO_BATCHES), "One reduction a step is left."),
            Misconception(TOTAL_GB / RANKS, "That is what a rank keeps. It sends all parts but its own."))),
    }, hints=("bf16 gradients of 26 billion parameters, and a reduce-scatter sends (n − 1)/n of its buffer.",
              "Kept: whole or divided by 16. Sent: 15/16 of the whole, once or eight times.")),
)
