"""What the checks of lesson 10 share: a small model in fp64 and its gradients in one vector."""

WIDTH = 24


def model_and_batch(seed: int, samples: int):
    """The same on every rank: a model in fp64, and the whole batch x [samples, WIDTH], y [samples, 1]."""
    import torch

    torch.manual_seed(seed)
    widths = [WIDTH, 40, 56, 32, 48, 1]
    layers = [layer for a, b in zip(widths, widths[1:], strict=False) for layer in (torch.nn.Linear(a, b),
                                                                                     torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers).double()
    return model, torch.randn(samples, WIDTH).double(), torch.randn(samples, 1).double()


def loss_of(model, x, y):
    """The mean of squared errors."""
    return (model(x) - y).square().mean()


def gradient(model):
    """A copy of all gradients in one vector, zeros where there are none."""
    import torch

    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


def weights(model):
    import torch

    return torch.cat([p.detach().flatten() for p in model.parameters()])


def near(a, b) -> bool:
    return bool((a - b).abs().max() < 1e-9)
