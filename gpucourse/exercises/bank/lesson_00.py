"""Lesson 00, start here."""

import random
from dataclasses import dataclass, field

from gpucourse.catalog.gpus import gpu
from gpucourse.catalog.units import GiB
from gpucourse.evidence import KINDS
from gpucourse.exercises.expect import expect_close, expect_equal
from gpucourse.exercises.kinds import Code, Guess, Misconception, Number, Parts, Pick, Quantity

GUESSES = (
    Guess("00.g1", ("fp32 product", "bf16 product"), "TFLOP/s"),
    Guess("00.g2", ("copy, large",), "GB/s"),
)

M, K, N = 4096, 1024, 8192
WEIGHTS, CARD = 2 * 7e9, 22.03
H100 = gpu("h100-sxm").peak("bf16") / 1e12  # TFLOP/s, dense


def product_ms(times: float) -> float:
    """Milliseconds of [8192, 8192] × [8192, 8192] at `times` the dense peak."""
    return 2 * 8192**3 / (times * H100 * 1e12) * 1e3


STATEMENTS = {"A": "dry run", "B": "published", "C": "computed", "D": "simulated", "E": "measured", "F": "recorded"}
WHY_NOT = {
    "computed": "No formula is named. Did something run, and who ran it?",
    "dry run": "A dry run executes the real code on tensors without memory. Is that what happened?",
    "measured": "Measured means here and now, on real memory and a real clock. Was it?",
    "simulated": "Simulated means that something was played by something else. What was?",
    "recorded": "Recorded means that we measured it earlier and kept device and date. Did we?",
    "published": "Published means that others found it and said where. Who did?",
}


def statement(name: str) -> Pick:
    return Pick(options={kind: kind for kind in KINDS}, right=STATEMENTS[name], why=WHY_NOT)


@dataclass
class PlayedMachine:
    """A clock and a function on it: the first call is slow, and some later ones stumble."""

    usual: float
    first: float
    stumbles: list[float]
    now: float = 0.0
    calls: int = 0
    reads: list[int] = field(default_factory=list)  # how many calls had been made at each look at the clock

    def clock(self) -> float:
        self.reads.append(self.calls)
        return self.now

    def call(self) -> None:
        extra = self.first if self.calls == 0 else self.stumbles[self.calls % len(self.stumbles)]
        self.now += self.usual + extra
        self.calls += 1


def run_rate_of(function):
    for turn in (1, 2):
        draw = random.Random()
        usual, repeats = draw.uniform(1e-3, 9e-3), draw.choice((9, 11, 15))
        stumbles = [0.0, 0.0, draw.uniform(0.1, 0.4), 0.0, 0.0]  # one call in five
        machine = PlayedMachine(usual, draw.uniform(1.0, 3.0), stumbles)
        flops = draw.uniform(1e9, 1e12)
        got = function(machine.call, flops, repeats, machine.clock)
        yield expect_equal(f"machine {turn}: calls of fn", machine.calls, repeats + 1,
                           note="One call for nothing, then `repeats` under the clock.")
        yield expect_close(f"machine {turn}: the rate, relative to the played one",
                           got * usual / flops if isinstance(got, int | float) else got, 1.0, atol=1e-6,
                           note="A slow first call, or one that stumbled, has reached the result. What throws away the "
                                "first, and what does not mind a bad one in five? And is it work over time?")


def broken_rate(warm=True, middle="median", upside_down=False):
    def rate_of(fn, flops, repeats, clock):
        import statistics

        if warm:
            fn()
        times = []
        for _ in range(repeats if warm else repeats + 1):
            begin = clock()
            fn()
            times.append(clock() - begin)
        time = {"median": statistics.median, "mean": statistics.fmean, "max": max}[middle](times)
        return time / flops if upside_down else flops / time
    return rate_of


def one_long_timing(fn, flops, repeats, clock):
    fn()
    begin = clock()
    for _ in range(repeats):
        fn()
    return flops * repeats / (clock() - begin)


def no_warm_up(fn, flops, repeats, clock):
    return broken_rate(warm=False)(fn, flops, repeats - 1, clock)


@dataclass(frozen=True)
class Rates:
    """What measure.ceilings() returns, for the tests of the checkers."""

    flops: dict
    bandwidth: dict


EXERCISES = (
    Number("00.1", "The work of a product", expected=lambda: 2 * M * K * N / 1e9, unit="GFLOP",
           misconceptions=(
               Misconception(M * K * N / 1e9, "That counts each multiply-add once; it is two operations."),
               Misconception(2 * M * N / 1e9, "That is two operations an element of the result. How many products are "
                                              "summed for one element?")),
           hints=("How many numbers does the result have, and how many products are added up for each?",
                  "4096 · 8192 elements, 1024 products each, and a product is followed by an addition.")),
    Parts("00.2", "GB, GiB, and what fits", parts={
        "weights, GB": Quantity(expected=WEIGHTS / 1e9, unit="GB", within=1e-3, misconceptions=(
            Misconception(7.0, "16 bits are two bytes a parameter."),
            Misconception(WEIGHTS / GiB, "That is GiB: GB counts in powers of ten."))),
        "weights, GiB": Quantity(expected=WEIGHTS / GiB, unit="GiB", within=1e-3, misconceptions=(
            Misconception(WEIGHTS / 1e9, "That is GB: a GiB is 2³⁰ bytes."),
            Misconception(WEIGHTS / 1e9 * 1.024**3, "The other way round: a GiB is larger, so there are fewer."))),
        "left, GiB": Quantity(expected=CARD - WEIGHTS / GiB, unit="GiB", within=1e-3, misconceptions=(
            Misconception(CARD - WEIGHTS / 1e9, "That subtracts GB from GiB."),
            Misconception(24 - WEIGHTS / GiB, "24 is the number on the box; torch reports less."))),
    }, hints=("Two bytes a parameter. How many bytes is a GB, how many a GiB?",
              "10⁹ and 2³⁰. Convert first, then subtract in one unit.")),
    Code("00.3", "A clock that can be trusted", run=run_rate_of,
         broken={"no warm-up, one call less": (no_warm_up, "One call for nothing"),
                 "mean": (broken_rate(middle="mean"), "what does not mind a bad one in five"),
                 "slowest": (broken_rate(middle="max"), "what does not mind a bad one in five"),
                 "upside down": (broken_rate(upside_down=True), "is it work over time"),
                 "one clock around all": (one_long_timing, "what does not mind a bad one in five")},
         hints=("How many times is fn called in all, and which of them are looked at?",
                "Time each call by itself, keep the times in a list, and take the value in the middle.",
                "fn(), then a loop: begin = clock(); fn(); times.append(clock() - begin). The rate is flops divided by "
                "statistics.median(times).")),
    Parts("00.4", "What kind of evidence?", parts={name: statement(name) for name in STATEMENTS},
          hints=("For each: did something run? On what? Who, and when?",
                 "The table in *Six kinds of evidence* has one line for each, and each kind occurs once here.")),
    Number("00.5", "Where this machine turns", unit="FLOPs a byte", within=0.01,
           expected=lambda rates: rates.flops["fp32"] / rates.bandwidth["copy, large"],
           misconceptions=(
               Misconception(lambda rates: rates.bandwidth["copy, large"] / rates.flops["fp32"],
                             "That is bytes a FLOP: turn it over."),
               Misconception(lambda rates: rates.flops["fp32"] / rates.bandwidth["copy, small"],
                             "The small copy stays in a cache. A large tensor does not."),
               Misconception(lambda rates: rates.flops["bf16"] / rates.bandwidth["copy, large"],
                             "That is the turn for bf16; the question is about fp32.")),
           example=Rates({"fp32": 2e11, "bf16": 9e11}, {"copy, small": 9e10, "copy, large": 1.5e10}),
           hints=("At the turn, arithmetic and memory take the same time. Write both times for an operation of F FLOPs "
                  "and B bytes.",
                  "F / (FLOP/s) = B / (bytes/s). What is F / B?")),
    Parts("00.6", "A factor of two", parts={
        "why": Pick(
            options={"a": "one counts a multiply and an add as one operation",
                     "b": "one is with the boost clock, the other with the base clock",
                     "c": "one assumes that half of the weights are zero, in a fixed pattern",
                     "d": "one is for fp8, which has half the bits"},
            right="c",
            why={"a": "Both count two operations for a multiply-add, as every vendor does.",
                 "b": "Boost and base clocks differ by less than a factor of two, and data sheets quote boost.",
                 "d": "fp8 does double the rate of bf16 on this card, but both figures here are quoted for bf16."}),
        "ms at least": Quantity(expected=lambda: product_ms(1), unit="ms", within=0.01, misconceptions=(
            Misconception(lambda: product_ms(2), "That is half: a multiply-add is two operations, and ordinary weights "
                                                 "are not zero."),)),
        "of 700 TFLOP/s, %": Quantity(expected=lambda: 700 / H100 * 100, unit="%", within=0.01, misconceptions=(
            Misconception(lambda: 700 / H100 / 2 * 100, "That is the share of the sparse peak, which no ordinary "
                                                        "product can reach."),)),
    }, hints=("Look for the footnote on the vendor's page.",
              "Structured sparsity: two of each four weights are zero, and skipped. Ordinary weights are not.",
              "2 · 8192³ FLOPs at the dense rate; and 700 divided by it.")),
)
