"""Lesson 04, precision."""

from gpucourse.exercises.bank.precision_choices import BITS, CHOSEN, SITUATIONS
from gpucourse.exercises.bank.precision_nan import loop, run_mended
from gpucourse.exercises.bank.precision_roundings import ROUNDINGS, STOPS, vanishes
from gpucourse.exercises.bank.precision_scaler import broken_scaler, run_loss_scaler
from gpucourse.exercises.bank.precision_stochastic import (
    one_at_a_time,
    own_chance,
    plus_noise,
    run_stochastic,
    towards,
    uniform,
)
from gpucourse.exercises.kinds import Code, Guess, Parts, Pick

GUESSES = (
    Guess("04.g1", ("bf16", "bf16, fp32 master", "fp32"), "weights moved"),
    Guess("04.g2", ("zero in fp16",), "%"),
)

EXERCISES = (
    Parts("04.1", "What does it become?", parts=ROUNDINGS,
          hints=("For each: between which two powers of two does it lie, and how far apart are the numbers there?",
                 "Spacing = 2^(exponent − mantissa bits). Divide, round to a whole number, multiply; a tie goes to the "
                 "even one.",
                 "Steps: 1/128 at 1 in bf16, 2 at 2048 in fp16, 2 at 16 in e4m3. The largest number of e4m3 is 448, "
                 "the smallest of fp16 2⁻²⁴; e2m1 has 4 and 6.")),
    Parts("04.2", "Where a sum stops", parts=STOPS,
          hints=("What must the spacing at the sum be, so that adding the number changes nothing?",
                 "The sum stops where the number is less than half of the spacing, or half of it and the sum is even.",
                 "Spacing is 2^(e − m) between 2^e and 2^(e+1), with m = 10, 7, 3. Find the first power of two at "
                 "which the number is at most half of it.")),
    Code("04.3", "A dynamic loss scaler", run=run_loss_scaler,
         broken={"never unscales": (broken_scaler(unscale=False), "still multiplied by the scale"),
                 "looks at the last gradient only": (broken_scaler(looks="last"), "in any gradient, spoils the step"),
                 "looks for NaN only": (broken_scaler(looks="nan"), "in any gradient, spoils the step"),
                 "steps all the same": (broken_scaler(skip="no"), "A skipped step changes nothing"),
                 "steps with zeros": (broken_scaler(skip="zero"), "With gradients of zero it is still a step"),
                 "never halves": (broken_scaler(halve=False), "A bad step halves the scale"),
                 "never grows": (broken_scaler(grow=False), "the scale doubles"),
                 "counts on after an overflow": (broken_scaler(reset=False), "sets the count of good ones back"),
                 "one look a gradient": (broken_scaler(one_look=False), "Each look waits for the device")},
         hints=("Three things to keep: the scale, the interval, and how many good steps there were in a row.",
                "p.grad.isfinite().all() is a tensor with one truth value. torch.stack makes one tensor of many; "
                ".all().item() is one look.",
                "Divide every gradient; look once; if bad: halve, count = 0, return False. Else optimizer.step(), "
                "count + 1, and at the interval double and count from 0.")),
    Code("04.4", "Stochastic rounding", run=run_stochastic,
         broken={"to the nearest": (lambda x, generator: x.bfloat16(), "The mean is off"),
                 "a coin": (towards(lambda place, x, g: uniform(x, g) < 0.5), "The mean is off"),
                 "always away from zero": (towards(lambda place, x, g: place > 0), "The mean is off"),
                 "always towards zero": (towards(lambda place, x, g: place > 2), "The mean is off"),
                 "the wrong neighbour": (towards(lambda place, x, g: uniform(x, g) > place), "The mean is off"),
                 "negative values the other way": (
                     towards(lambda place, x, g: uniform(x, g) < place.where(x > 0, 1 - place)), "a negative value"),
                 "half of the noise": (towards(lambda place, x, g: uniform(x, g) / 2 + 0.5 < place), "The mean is off"),
                 "noise too wide": (plus_noise, "never one further away"),
                 "chance of its own": (own_chance, "the only source of chance"),
                 "returns fp32": (lambda x, generator: x, "Return a bf16 tensor"),
                 "one value at a time": (one_at_a_time, "one at a time")},
         hints=("If a value lies a tenth of the way from one neighbour to the other, how often must it go there?",
                "The lower 16 bits of the fp32 pattern, as a whole number over 65,536, are that tenth. A random number "
                "below 65,536, added to it, carries into the upper half exactly that often.",
                "x.view(torch.int32) + torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32), then "
                "clear the lower half with & ~0xFFFF, view as float32, cast.")),
    Code("04.5", "A run that turns to NaN", run=run_mended,
         broken={"as it was": (loop(square="fp16", clip="before", step="optimizer"), "Which call looks first"),
                 "steps without looking": (loop(step="optimizer"), "Which call looks first"),
                 "clips scaled gradients": (loop(clip="before"), "still multiplied by the scale"),
                 "squares in fp16": (loop(square="fp16"), "In which type is the difference squared"),
                 "no clip": (loop(clip="never"), "not clipped to 1"),
                 "fp32 all over": (loop(fp16=False), "must stay in fp16")},
         hints=("Go down the loop: what is the largest number that each line may meet in fp16? And what are the "
                "gradients multiplied by when they are clipped?",
                "Square in fp32. Bring the gradients back to their size before clipping. Let the scaler decide about "
                "the step.",
                "(out.float() - y.float()).square().mean().sqrt(); scaler.scale(loss).backward(); "
                "scaler.unscale_(optimizer); clip; scaler.step(optimizer); scaler.update().")),
    Parts("04.6", "Bits for a scale", parts=BITS,
          hints=("How many bits does a whole block take, scale included? Divide by its elements.",
                 "MXFP8: (32 · 8 + 8) / 32. NVFP4: (16 · 4 + 8) / 16. Then bits / 8 · 8e9 / 2³⁰.")),
    Parts("04.7", "A precision for a card", parts=SITUATIONS | CHOSEN,
          hints=("For each: what can the device multiply fast? And what is short: time, memory, changes to the code?",
                 "The table of peaks answers the first four. For the fifth, count the bytes a parameter that each way "
                 "stores. For the last, ask what emulated means for the time.",
                 "T4: its row ends in fp16, at 65 against 8.1. A100 by a setting: tf32, 156 against 19.5. Pure bf16: "
                 "four lists of two bytes, and a way to make small updates count.")),
    Parts("04.8", "What was rounded away?", parts={
        "what": Pick(
            options={"a": "the weights are stored in fp16 and no longer move",
                     "b": "as the model improves, more of the gradient is below the smallest number of fp16 and "
                          "becomes zero",
                     "c": "the optimizer skips the steps in which a gradient overflows",
                     "d": "the loss is a mean in fp16, and stands still at a tie"},
            right="b",
            why={"a": "Autocast stores fp32 weights: they take any update that arrives. What arrives?",
                 "c": "No gradient was infinite, so nothing was skipped.",
                 "d": "A loss that were rounded would still have a gradient; and it falls, only slowly."}),
        "scale 1: p up to 2^": vanishes(0), "scale 2^10: p up to 2^": vanishes(10),
    }, hints=("What does a scale of 1 mean for the small gradients?",
              "Look at the picture of ranges again. Which way does the histogram move as the model improves?",
              "The smallest number is 2⁻²⁴; half of it is a tie, and goes to zero. p · scale / 2048 is what is cast.")),
)
