"""Lesson 10, data parallel."""

from gpucourse.exercises.bank import (
    data_parallel_accumulation,
    data_parallel_buckets,
    data_parallel_norm,
    data_parallel_tokens,
    data_parallel_uneven,
    data_parallel_unused,
)
from gpucourse.exercises.kinds import Code, Guess, Misconception, Parts, Pick, Quantity
from gpucourse.predict.link import scaling_efficiency

GUESSES = (Guess("10.g1", ("one bucket", "eight buckets"), "ms"),)

FEW, MANY = 128, 512
SAMPLES = 1000
RATES = {"1B": (44_123, 39_837), "7B": (10_475, 9_670), "70B": (1_058, 1_007)}  # tokens/s a GPU, case B05


def efficiency(name: str) -> Quantity:
    few, many = RATES[name]
    return Quantity(expected=scaling_efficiency(few, many), unit="", within=0, or_within=0.001, misconceptions=(
        Misconception(few / many, "That is above 1: more GPUs would have made each of them faster. Which goes below?"),
        Misconception(many * MANY / (few * FEW), "That is the speed-up of the whole. These rates are of one GPU "
                                                 "each."),
        Misconception(many * MANY / (few * FEW) / MANY, "Divide the speed-up by how many times as many GPUs there "
                                                        "are."),
        Misconception(1 - many / few, "That is what was lost.")))


def twice(ranks: int) -> Quantity:
    """Samples of SAMPLES that a sampler repeats so that `ranks` ranks have equally many."""
    each = -(-SAMPLES // ranks)
    return Quantity(expected=each * ranks - SAMPLES, unit="samples", within=0, misconceptions=(
        Misconception(each, "That is what each rank gets. How many are that together?"),
        Misconception(SAMPLES % ranks or ranks, "That is what is left over when each rank gets as many as fit. The "
                                                "sampler rounds up.")))


def gained() -> float:
    few, many = RATES["1B"]
    return (many * MANY - few * FEW) / (few * (MANY - FEW))


EXERCISES = (
    Code("10.1", "Buckets, while backward runs", run=data_parallel_buckets.run, broken=data_parallel_buckets.BROKEN,
         hints=("In which order do gradients come to exist? Which hook is called when one is complete?",
                "Pack the parameters in reversed order, closing a bucket as soon as it holds bucket_bytes. Each "
                "parameter's hook counts its bucket down; at zero, the bucket's gradients are joined in one vector and "
                "dist.all_reduce(flat, async_op=True) starts. Keep the handle.",
                "finish(): for each bucket in flight wait(), divide by the number of ranks, split it by the sizes of "
                "its gradients, and copy each part back (view_as). Then set the counts back and forget the handles: "
                "there will be another step.")),
    Code("10.2", "Synchronise once", run=data_parallel_accumulation.run, broken=data_parallel_accumulation.BROKEN,
         hints=("When is the gradient of the window complete in .grad? Which hook runs after it was added there?",
                "Put register_post_accumulate_grad_hook on each parameter before the last micro-batch only; inside it "
                "average p.grad over the ranks.",
                "Each micro-batch's loss is divided by len(window). In the hook: dist.all_reduce(p.grad), then divide "
                "by the number of ranks. Take the hooks off again: handle.remove().")),
    Code("10.3", "Batch norm over all ranks", run=data_parallel_norm.run, broken=data_parallel_norm.BROKEN,
         hints=("Ranks have different numbers of rows. Which quantities of the rows can be added up over ranks?",
                "The sum, the sum of squares and the count, in one vector. Its all-reduce must let gradients through: "
                "functional.all_reduce of torch.distributed._functional_collectives does.",
                "total = functional.all_reduce(torch.cat([sum, squares, count]), 'sum', dist.group.WORLD), then "
                "split([C, C, 1]); mean = sum/count, variance = squares/count − mean².")),
    Code("10.4", "The tokens of all ranks", run=data_parallel_tokens.run, broken=data_parallel_tokens.BROKEN,
         hints=("DDP averages the ranks' gradients. By what must each rank's sum of losses be divided, so that the "
                "average is the mean over all trained tokens?",
                "All-reduce the number of trained tokens; divide this rank's sum of trained losses by it.",
                "DDP then divides by the number of ranks once more: multiply by dist.get_world_size().")),
    Code("10.5", "What nothing reaches", run=data_parallel_unused.run, broken=data_parallel_unused.BROKEN,
         hints=("What is .grad of a parameter that no loss reaches, and what is it if the gradient happens to be zero?",
                "Clear all gradients, run once forward and backward, look for None. DDP waits only for parameters "
                "that ask for a gradient.")),
    Code("10.6", "One batch more", run=data_parallel_uneven.run, broken=data_parallel_uneven.BROKEN,
         hints=("The rank that has ended must take part in the others' all-reduces. With what?",
                "torch.distributed.algorithms.join.Join([ddp]) around the loop plays the missing all-reduces with "
                "zeros. By what is the sum then divided?",
                "Join([ddp], divide_by_initial_world_size=False) divides by the ranks that still have data.")),
    Parts("10.7", "Four times the GPUs", parts={
        **{f"efficiency, {name}": efficiency(name) for name in RATES},
        "1B: worth of an added GPU": Quantity(
            expected=gained, unit="", within=0, or_within=0.001, misconceptions=(
                Misconception(scaling_efficiency(*RATES["1B"]),
                              "That is what each of the 512 does. The first 128 became slower too: what did the 384 "
                              "others add to the whole?"),)),
    }, hints=("Weak scaling: each GPU has as much to do as before. What would its rate be without any loss?",
              "Efficiency: tokens/s a GPU on many, divided by that on few. For the last: what the whole gained, over "
              "what as many GPUs would do at the rate of few.")),
    Parts("10.8", "The same model, another accuracy", parts={
        "why": Pick(
            options={"a": "gradients are added in another order on 8 ranks, so the weights differ",
                     "b": "the sampler repeats samples until all ranks have as many, and these count twice",
                     "c": "dropout draws other masks on each rank",
                     "d": "each rank has batch statistics of its own"},
            right="b",
            why={"a": "There is one file of weights, and nothing is trained here.",
                 "c": "In eval() dropout does nothing. It would also change from run to run.",
                 "d": "In eval() a batch norm uses the running statistics, which are in the file."}),
        **{f"{ranks} ranks: counted twice": twice(ranks) for ranks in (8, 32, 48)},
    }, hints=("What depends on the number of ranks in an evaluation without gradients?",
              "1,000 samples on 32 ranks: how many does each rank get?",
              "Each rank gets the same number of samples, rounded up; what is more than 1,000 is counted twice.")),
)
