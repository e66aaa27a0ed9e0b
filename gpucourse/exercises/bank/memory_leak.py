"""Check of 01.4: a loop that must not hold more after a hundred steps than after ten."""

from gpucourse.exercises.bank.memory_model import data, small_model
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal


def run_train(function):
    """The same weights and mean as a plain loop, and as much memory after many steps as after few."""
    import copy

    import torch

    from gpucourse.measure import LiveStorages

    model = small_model(24)
    twin, batches = copy.deepcopy(model), data(10, 16, 24)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin))
    losses = []
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(twin(x), y)
        other.zero_grad()
        loss.backward()
        other.step()
        losses.append(loss.item())
    got = function(model, optimizer, batches)
    yield expect_equal("a Python float comes back", type(got).__name__, "float",
                       note="Give `.item()`: a tensor that is not detached still holds the graph that made it.")
    yield expect_close("the mean loss", got, sum(losses) / len(losses), atol=1e-5)
    got, wanted = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, twin))
    yield expect_close("the same weights as the plain loop", got, wanted, atol=1e-5,
                       note="Every batch needs its backward, its step, and gradients that start from nothing.")
    ends = []

    def watched(count, live):
        for step in range(count):
            yield batches[step % len(batches)]
            ends.append(live.live)

    with LiveStorages() as live:
        live.own(model, *(t for pair in batches for t in pair))
        function(model, optimizer, watched(100, live))
    yield expect_at_most("live bytes after 100 steps, above those after 10", ends[-1] - ends[9], 64, "bytes",
                         note="Memory grows with each step. Which object of a step is still reachable after it, "
                              "and what does that object hold?")


def leaky(keep):
    def train(model, optimizer, batches):
        import torch

        total, seen = 0, []
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total, seen = total + keep(loss), [*seen, keep(loss)]
        return float(getattr(total, "detach", lambda: total)() / len(seen))
    return train


def never_zeroed(model, optimizer, batches):
    import torch

    losses = []
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def returns_a_tensor(model, optimizer, batches):
    import torch

    return torch.tensor(leaky(lambda loss: loss.item())(model, optimizer, batches))
