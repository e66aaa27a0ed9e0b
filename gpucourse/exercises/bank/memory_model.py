"""The data and the small model of 01.4 and 01.5."""


def data(batches: int, rows: int, width: int, short: int = 0):
    import torch

    sizes = [rows] * batches
    if short:
        sizes[-1] = short
    return [(torch.randn(size, width), torch.randn(size, 1).exp()) for size in sizes]


def small_model(width: int, dropout: float = 0.0):
    import torch

    return torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Dropout(dropout),
                               torch.nn.Linear(64, 1))
