"""Exercise 02.3: a device with a queue, a cache and a slow start, on which a benchmark is tried."""

import random
import statistics
from collections import deque
from dataclasses import dataclass, field

from gpucourse.exercises.expect import expect_close, expect_equal


@dataclass
class PlayedDevice:
    """A device with a queue and a cache, and the clock of the host that feeds it."""

    work: float  # seconds on the device for an input that is not in its cache
    launch: float = 0.0  # seconds of the host to queue a call
    cached: float = 1.0  # what is left of `work` for one of the last four inputs
    slow: int = 0  # calls at the start that take ten times as long
    stumble: float = 0.0  # seconds that each fifth call takes longer
    lucky: float = 1.0  # what is left of `work` in each seventh call
    queues: bool = True
    now: float = 0.0
    free: float = 0.0  # when the queue will be empty
    calls: int = 0
    recent: deque = field(default_factory=lambda: deque(maxlen=4))

    def call(self, given: int) -> None:
        work = self.work * (self.cached if given in self.recent else 1) * (10 if self.calls < self.slow else 1)
        work *= self.lucky if self.calls % 7 == 6 else 1
        work += self.stumble if self.calls % 5 == 4 else 0
        self.recent.append(given)
        self.calls += 1
        self.now += self.launch
        self.free = max(self.free, self.now) + work
        if not self.queues:
            self.synchronize()

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def clock(self) -> float:
        return self.now


def run_seconds_of(function):
    """One device for each fault, so that each has its own line, and one with all of them."""
    draw = random.Random()
    work, launch = draw.uniform(1e-3, 5e-3), draw.uniform(1e-5, 2e-4)
    stumble, cached, warmup = draw.uniform(0.05, 0.2), draw.uniform(0.2, 0.5), draw.randint(16, 20)  # > repeats
    lucky = draw.uniform(0.5, 0.8)
    devices = (
        ("a device that queues", PlayedDevice(work, launch),
         "A launch was timed, or more than one call was in the queue. The clock starts on an idle device and stops "
         "when the result is there."),
        ("one that starts slowly", PlayedDevice(work, launch, slow=warmup, queues=False),
         "Calls from the start have reached the result. How many of them does the caller tell you to throw away?"),
        ("one with a cache", PlayedDevice(work, launch, cached=cached, queues=False),
         "The input was still in the cache. Which input did no call see lately?"),
        ("one with odd calls", PlayedDevice(work, launch, stumble=stumble, lucky=lucky, queues=False),
         "Each fifth call stumbled, each seventh had luck, and your figure moved. Which figure does not mind?"),
        ("all of it", PlayedDevice(work, launch, cached, warmup, stumble, lucky),
         "Each fault alone is dealt with, not all together: is the queue empty when the first timed call starts?"),
    )
    for what, device, note in devices:
        repeats = draw.choice((11, 13, 15))
        got = function(device.call, list(range(12)), warmup, repeats, device.clock, device.synchronize)
        ratio = got / (work + launch) if isinstance(got, int | float) else got
        yield expect_close(f"{what}: your time ÷ its time", ratio, 1.0, atol=1e-6, note=note)
        yield expect_equal(f"{what}: calls", device.calls, warmup + repeats,
                           note="`warmup` calls for nothing, then `repeats` under the clock.")


def broken_seconds(warm=True, wait=True, cycle=True, middle=statistics.median):
    def seconds_of(fn, inputs, warmup, repeats, clock, synchronize):
        times = []
        for turn in range(warmup + repeats):
            begin = clock()
            fn(inputs[turn % len(inputs) if cycle else 0])
            if wait:
                synchronize()
            times.append(clock() - begin)
        return middle(times[warmup:] if warm else times)
    return seconds_of


def one_long_queue(fn, inputs, warmup, repeats, clock, synchronize):
    for turn in range(warmup):
        fn(inputs[turn % len(inputs)])
    synchronize()
    begin = clock()
    for turn in range(repeats):
        fn(inputs[(warmup + turn) % len(inputs)])
    synchronize()
    return (clock() - begin) / repeats
