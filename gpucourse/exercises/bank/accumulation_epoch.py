"""The check of 05.3: a whole epoch in windows, of which the last is short."""

import itertools
from collections.abc import Callable

from gpucourse.exercises.bank.accumulation_model import (
    Passes,
    backward_of,
    loss_of,
    mean_of_means,
    micro_batches,
    small_model,
    trained,
    whole,
)
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.results import Mark, Wrong


class Stream:
    """Micro-batches one at a time; keeps how many backward passes there had been when each was asked for."""

    def __init__(self, made, passes: Passes):
        self.made, self.passes, self.asked = made, passes, []

    def __iter__(self):
        for micro in self.made:
            self.asked.append(self.passes.count)
            yield micro


class Steps:
    """An optimizer that keeps how many backward passes stand behind each of its steps."""

    def __init__(self, optimizer, passes: Passes):
        self.optimizer, self.passes, self.ends = optimizer, passes, []

    def step(self, closure=None):
        self.ends.append(self.passes.count)
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True):
        self.optimizer.zero_grad(set_to_none)


def epoch(model, window_of: Callable, made, accumulate: int):
    """Train `model` on windows of `accumulate`, each taken by window_of(model, window); its weights in one vector."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for begin in range(0, len(made), accumulate):
        window_of(model, made[begin:begin + accumulate])
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def boundary_note(got: list[int], wanted: list[int], accumulate: int) -> str:
    if got[:1] == [1] and accumulate > 1:
        return ("The first step follows the first micro-batch: the condition is off by one. How many are behind a step "
                "at i = 0?")
    if got == wanted[:-1]:
        return "The last, short window is never stepped: its gradients stay in .grad for whoever comes next."
    if len(got) > len(wanted):
        return "There are steps with nothing new behind them."
    return "A step belongs after every `accumulate` micro-batches, and after the last."


def run_train(function):
    """Where the steps fall, the weights after an epoch, and how far the stream is read ahead."""
    import copy

    import torch

    for accumulate, count in ((4, 10), (3, 6)):
        model, made = small_model(), micro_batches(count, 2)
        fresh = copy.deepcopy(model)
        passes = Passes(model)
        stream = Stream(made, passes)
        optimizer = Steps(torch.optim.SGD(model.parameters(), lr=0.5), passes)
        got = function(model, optimizer, stream, accumulate)
        ends = [min(begin + accumulate, count) for begin in range(0, count, accumulate)]
        what = f"{count} micro-batches, windows of {accumulate}"
        yield expect_equal(f"{what}: micro-batches behind each step", optimizer.ends, ends,
                           note=boundary_note(optimizer.ends, ends, accumulate))
        if optimizer.ends != ends:
            raise Wrong("the weights depend on the steps: not looked at")
        yield expect_equal(f"{what}: the number of steps comes back", got, len(ends))
        ahead = max(place - done for place, done in enumerate(stream.asked))
        yield expect_at_most(f"{what}: micro-batches read ahead", ahead, accumulate, reason="for one window",
                             note="The stream has been read ahead of the training: an epoch does not fit.")
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        close = expect_close(f"{what}: the weights after them", weights,
                             epoch(copy.deepcopy(fresh), whole, made, accumulate), atol=1e-12)
        yield close if close.ok else Mark(close.what, False, close.seen, epoch_note(fresh, made, accumulate, weights))


EPOCH_MISTAKES = {
    "Each micro-batch's mean has the same weight: that is a mean of means. Counts differ.": lambda accumulate:
        mean_of_means,
    "A mean of means, and the short last window is divided as if it were full.": lambda accumulate: backward_of(
        lambda window, targets: trained([(None, targets)]) * accumulate),
    "The windows' tokens are counted as if every window were full.": lambda accumulate: backward_of(
        lambda window, targets: trained(window) * accumulate / len(window)),
}


def epoch_note(fresh, made, accumulate: int, got) -> str:
    """Which known mistake the weights are those of."""
    import copy

    import torch

    for note, mistake in EPOCH_MISTAKES.items():
        if torch.allclose(got, epoch(copy.deepcopy(fresh), mistake(accumulate), made, accumulate), rtol=1e-9):
            return note
    return ("Each window: gradients that start from nothing, the sum over its trained tokens, divided once by their "
            "number.")


def right_ends(i: int, accumulate: int, last: bool) -> bool:
    return (i + 1) % accumulate == 0 or last


def drops_the_last(i: int, accumulate: int, last: bool) -> bool:
    return (i + 1) % accumulate == 0


def off_by_one(i: int, accumulate: int, last: bool) -> bool:
    return i % accumulate == 0


def train_by(take: Callable, ends: Callable = right_ends, extra: bool = False):
    """A loop that reads the epoch ahead. take(model, micro, window, accumulate) does one backward pass; a step follows
    where ends(i, accumulate, last) says so."""
    def train(model, optimizer, batches, accumulate):
        made, done = list(batches), 0
        for i, micro in enumerate(made):
            window = made[i - i % accumulate:i - i % accumulate + accumulate]
            take(model, micro, window, accumulate)
            if ends(i, accumulate, i == len(made) - 1):
                optimizer.step()
                optimizer.zero_grad()
                done += 1
        if extra:
            optimizer.step()
            done += 1
        return done
    return train


def by_tokens(model, micro, window, accumulate):
    (loss_of(model, *micro) / trained(window)).backward()


def by_means(model, micro, window, accumulate):
    (loss_of(model, *micro, "mean") / len(window)).backward()


def by_means_always_full(model, micro, window, accumulate):
    (loss_of(model, *micro, "mean") / accumulate).backward()


def as_if_full(model, micro, window, accumulate):
    (loss_of(model, *micro) * len(window) / (trained(window) * accumulate)).backward()


def windowed(take, clear: bool = True):
    """The same without reading ahead."""
    def train(model, optimizer, batches, accumulate):
        stream, done = iter(batches), 0
        while window := list(itertools.islice(stream, accumulate)):
            for micro in window:
                take(model, micro, window, accumulate)
            optimizer.step()
            if clear:
                optimizer.zero_grad()
            done += 1
        return done
    return train
