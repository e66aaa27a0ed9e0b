"""The check of 05.2: one window of micro-batches, its gradients, its loss and what it costs."""

import itertools

from gpucourse.exercises.bank.accumulation_model import (
    Passes,
    a_sum,
    every_position,
    gradients,
    loss_of,
    mean_of_means,
    micro_batches,
    small_model,
    trained,
    weighted,
    whole,
)
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.results import Mark

MISTAKES = {
    "Each micro-batch's mean has the same weight: that is a mean of means. What is the divisor of a token that was "
    "trained, and of how many micro-batches does it know?": mean_of_means,
    "Every position has been counted, also those that nothing is learnt from.": every_position,
    "The sum has not been divided by the window's tokens.": a_sum,
}


def why(model, window, got) -> str:
    """What a wrong gradient is the gradient of, where it is known."""
    import torch

    for note, mistake in MISTAKES.items():
        mistake(model, window)
        if torch.allclose(got, gradients(model), rtol=1e-6):
            return note
    return "Sum the losses of the trained tokens, and divide by the number of them in the whole window."


def peak_of(function, model, window) -> int:
    from gpucourse.measure import LiveStorages

    with LiveStorages() as live:
        live.own(model, *itertools.chain(*window))
        before = live.live
        function(model, window)
    model.zero_grad()
    return live.peak - before


def run_accumulate_window(function):
    """Values in two formats, a micro-batch without trained tokens, backward passes, and the peak."""
    import torch

    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        model, window = small_model(dtype), micro_batches(5, 2)
        wanted_loss = whole(model, window)
        wanted = gradients(model)
        passes = Passes(model)
        got_loss = function(model, window)
        got, taken = gradients(model), passes.count
        off = ((got - wanted).norm() / wanted.norm()).item()
        close = expect_close(f"gradients equal to one batch's, {str(dtype)[6:]}, relative error", off, 0.0, atol=limit)
        yield close if close.ok else Mark(close.what, False, close.seen, why(model, window, got))
        yield expect_equal("a Python float comes back", type(got_loss).__name__, "float",
                           note="The mean loss as a number: a tensor still holds a graph.")
        yield expect_close("the mean loss", got_loss, wanted_loss, atol=1e-5,
                           note="The loss is the same sum over the same divisor as the gradient.")
        yield expect_equal("backward passes for 5 micro-batches", taken, 5,
                           note="One backward pass for each micro-batch: only backward() frees what forward has saved.")
    model, window = small_model(), micro_batches(4, 2, untrained=1)
    wanted_loss = whole(model, window)
    wanted = gradients(model)
    got_loss = function(model, window)
    yield expect_close("with a micro-batch that trains on nothing: gradients", gradients(model), wanted, atol=1e-12,
                       note="The mean over no token is 0/0. A sum over no token is 0.")
    yield expect_close("with a micro-batch that trains on nothing: the mean loss", got_loss, wanted_loss, atol=1e-5,
                       note="The mean over no token is 0/0. A sum over no token is 0.")
    window = micro_batches(8, 40)
    yield expect_at_most("peak above the start, 8 micro-batches", peak_of(function, model, window),
                         1.6 * peak_of(weighted, model, window[:2]), "bytes", reason="for the graph of one of them",
                         note="More than one micro-batch's graph is alive. What holds the others?")


def one_graph(model, window) -> float:
    total = sum(loss_of(model, *micro) for micro in window) / trained(window)
    total.backward()
    return total.item()


def means_times_counts(model, window) -> float:
    """Right, but for a micro-batch without a trained token."""
    total, count = 0.0, trained(window)
    for tokens, targets in window:
        loss = loss_of(model, tokens, targets, "mean") * trained([(tokens, targets)]) / count
        loss.backward()
        total += loss.item()
    return total


def keeps_graphs(model, window) -> float:
    losses = [loss_of(model, *micro) / trained(window) for micro in window]
    for loss in losses:
        loss.backward()
    return sum(loss.item() for loss in losses)


def returns_a_tensor(model, window):
    import torch

    return torch.tensor(weighted(model, window))
