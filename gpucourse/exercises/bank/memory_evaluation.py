"""Check of 01.5: an evaluation between two epochs, its value, the mode it leaves, and its peak."""

from gpucourse.exercises.bank.memory_model import data, small_model
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


def run_evaluate(function):
    """Values with an uneven last batch and with dropout, the mode left as found, and the peak of one forward layer."""
    import torch

    from gpucourse.measure import LiveStorages

    model, batches = small_model(24, dropout=0.5), data(5, 4000, 24, short=300)
    model.eval()
    with torch.no_grad():
        errors = torch.cat([((model(x) - y) ** 2).flatten() for x, y in batches])
    model.train()
    owned = [t for pair in batches for t in pair]
    with LiveStorages() as live:
        live.own(model, *owned)
        before = live.live
        got = function(model, batches)
    wide = 4000 * 64 * 4  # one hidden layer's output for the largest batch, fp32
    yield expect_close("the mean over all samples, dropout off", got, errors.mean().item(), atol=2e-4,
                       note="The last batch is shorter, so a mean of means is not the mean; and dropout belongs off.")
    yield expect_equal("the model is back in training mode", model.training, True,
                       note="It came in training mode. Whoever calls you goes on training without dropout.")
    yield expect_at_most("peak above the start", live.peak - before, 2.2 * wide, "bytes",
                         reason="for one layer's input and output",
                         note="Forward saves for backward as long as one may come. Who says that it will not be?")
    model.eval()
    function(model, batches[:1])
    yield expect_equal("a model in evaluation mode stays in it", model.training, False,
                       note="Remember the mode in which you found the model, instead of assuming it.")


def evaluation(grad=False, eval_mode=True, restore="as found", mean_of_means=False):
    def evaluate(model, batches):
        import torch

        found = model.training
        model.train(not eval_mode and found)
        sums, means, samples, kept = 0.0, [], 0, []
        with torch.set_grad_enabled(grad):
            for x, y in batches:
                loss = torch.nn.functional.mse_loss(model(x), y)
                kept.append(loss if grad else None)
                sums, samples, means = sums + loss.item() * len(x), samples + len(x), [*means, loss.item()]
        model.train({"as found": found, "train": True, "never": model.training}[restore])
        return sum(means) / len(means) if mean_of_means else sums / samples
    return evaluate
