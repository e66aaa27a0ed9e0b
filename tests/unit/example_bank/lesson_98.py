"""One exercise of every kind, for the tests of the exercises' machinery."""

import numpy

from gpucourse.exercises.expect import expect_at_most, expect_close
from gpucourse.exercises.kinds import Choice, Code, Guess, Misconception, Number, Parts, Pick, Quantity
from gpucourse.exercises.results import Wrong

GUESSES = (
    Guess("98.g1", "peak allocated", "GiB"),
    Guess("98.g2", ("neither", "pinned"), "ms a step"),
)


def run_double(function):
    values = numpy.random.default_rng().normal(size=(3, 5))
    calls = []
    got = function(values, calls.append)
    if not calls:
        raise Wrong("call() was never called", "Each copy is announced by call().")
    yield expect_close("values", got, 2 * values, atol=1e-12)
    yield expect_at_most("communication", len(calls), 1, "calls", reason="for one bucket",
                         note="What would have to be full before a call starts?")


def silent(values, call):
    return 2 * values


def unscaled(values, call):
    call(values)
    return values


def chatty(values, call):
    for row in values:
        call(row)
    return 2 * values


def crooked(values, call):
    call(values)
    return 2 * values.T


EXERCISES = (
    Number("98.1", "Bytes a parameter", expected=lambda: 4 + 4 + 8, unit="bytes a parameter", within=0,
           misconceptions=(Misconception(lambda: 4, "That counts the weights only: what else does AdamW keep?"),
                           Misconception(12, "Two moments, or one?")),
           wrong=(17,),
           hints=("What is alive during step()?", "Count weights, gradients and moments.", "4 + 4 + two moments.")),
    Number("98.2", "Peak here", expected=lambda peak: peak / 1024**3, unit="GiB", example=3 * 1024**3,
           misconceptions=(Misconception(lambda peak: peak / 1000**3, "GB, not GiB."),),
           hints=("Read the table.", "Divide by 1024 three times.")),
    Choice("98.3", "What pins it", right="b",
           options={"a": "the optimizer", "b": "the traceback", "c": "the allocator"},
           why={"a": "Its state is as large before the exception as after.", "c": "It caches, it does not pin."},
           hints=("What holds a frame?", "And a frame holds its locals.")),
    Parts("98.4", "The ledger of a layer",
          parts={"weights": Quantity(expected=lambda: 2.0, unit="GiB", within=0.05),
                 "gradients": Quantity(expected=1.0, unit="GiB",
                                       misconceptions=(Misconception(0.5, "Autocast keeps them in fp32."),)),
                 "peak at": Pick(options={"step": "in step()", "loss": "at the loss"}, right=lambda: "step",
                                 why={"loss": "The logits are small here."})},
          wrong=({"weights": 2, "gradients": 1, "peak at": "loss"},),
          hints=("Which is largest?", "Read the line again.")),
    Code("98.5", "Double in one call", run=run_double,
         broken={"silent": (silent, "never called"), "unscaled": (unscaled, "largest difference"),
                 "chatty": (chatty, "3 calls, at most 1"), "crooked": (crooked, "shape (3, 5), got (5, 3)")},
         hints=("How many calls?", "One.")),
    Number("98.6", "On many GPUs", expected=1, unit="s", needs_gpus=99, instead="The recorded result is shown below.",
           wrong=(2,), hints=("Count them.", "One more.")),
)
