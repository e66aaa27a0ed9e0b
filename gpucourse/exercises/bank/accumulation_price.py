"""The check of 05.4: the price of accumulation, measured on a machine that is played."""

import random
from dataclasses import dataclass, field

from gpucourse.exercises.expect import expect_close, expect_equal


@dataclass
class PlayedMachine:
    """A step takes update + accumulate · (each + slope · micro) seconds, more as the machine warms up."""

    update: float
    each: float
    slope: float
    drift: float  # by which every call makes all later ones slower
    now: float = 0.0
    calls: list[tuple[int, int]] = field(default_factory=list)

    def seconds(self, micro: int, accumulate: int) -> float:
        return self.update + accumulate * (self.each + self.slope * micro)

    def step(self, micro: int, accumulate: int) -> None:
        taken = self.seconds(micro, accumulate) * (1 + self.drift * len(self.calls))
        if (micro, accumulate) not in self.calls:
            taken += 3.0  # the first of its size takes memory and chooses kernels
        elif len(self.calls) % 5 == 4:
            taken *= 2.5  # somebody else uses the machine
        self.now += taken
        self.calls.append((micro, accumulate))

    def clock(self) -> float:
        return self.now


def run_price_of(function):
    for turn in (1, 2):
        draw = random.Random()
        micro, pieces = draw.choice((1, 2, 4)), draw.choice((4, 8, 16))
        batch, rounds = micro * pieces, draw.choice((11, 15))
        machine = PlayedMachine(draw.uniform(0.01, 0.03), draw.uniform(0.01, 0.04), draw.uniform(0.001, 0.01), 0.02)
        got = function(machine.step, batch, micro, rounds, machine.clock)
        sizes = sorted({micro * accumulate for micro, accumulate in machine.calls})
        yield expect_equal(f"machine {turn}: sequences of each step", sizes, [batch],
                           note="Both are steps over the same sequences: micro-batch × accumulation is the batch.")
        for name, way in (("in pieces", (micro, pieces)), ("whole", (batch, 1))):
            yield expect_equal(f"machine {turn}: steps {name}", machine.calls.count(way), rounds + 1,
                               note="Each way once for nothing, then `rounds` times under the clock.")
        true = machine.seconds(micro, pieces) / machine.seconds(batch, 1)
        yield expect_close(f"machine {turn}: the price, relative to the played one",
                           got / true if isinstance(got, int | float) else got, 1.0, atol=0.04,
                           note="The machine gets slower all the time, first calls are slow, and one call in five "
                                "stumbles. Which neighbours are equally slow, and what does not mind a bad pair?")


def price_by(order="in turn", middle="median", warm=True, upside_down=False):
    def price_of(step, batch, micro_batch, rounds, clock):
        import statistics

        def seconds(micro):
            begin = clock()
            step(micro, batch // micro)
            return clock() - begin

        pick = {"median": statistics.median, "mean": statistics.fmean}[middle]
        first = [(seconds(micro_batch), seconds(batch))]
        if order == "in turn":
            pairs = [(seconds(micro_batch), seconds(batch)) for _ in range(rounds)]
        else:
            pieces = [seconds(micro_batch) for _ in range(rounds)]
            pairs = list(zip(pieces, [seconds(batch) for _ in range(rounds)], strict=True))
        ratio = pick([one / other for one, other in (pairs if warm else first)])
        return 1 / ratio if upside_down else ratio
    return price_of


def pieces_only(step, batch, micro_batch, rounds, clock):
    """Compares a step over one micro-batch with a step over all."""
    def seconds(micro):
        begin = clock()
        step(micro, 1)
        return clock() - begin

    seconds(micro_batch), seconds(batch)
    return sorted(seconds(micro_batch) / seconds(batch) for _ in range(rounds))[rounds // 2]
