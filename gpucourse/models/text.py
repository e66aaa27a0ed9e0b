"""Text that every Python ships, as bytes: something real to train on without a download."""

import pydoc_data.topics
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gpucourse.errors import BadInput, positive_int

VOCABULARY = 256  # a token is a byte


def tokens(path: str | Path | None = None) -> Tensor:
    """All tokens of a text, int64 of shape [length], one a byte.

    Without a path: Python's own help topics (about 700 kB). They differ between Python versions, so a loss is
    comparable within one run only.
    """
    if path is None:
        data = "\n".join(pydoc_data.topics.topics.values()).encode()
    else:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise BadInput(f"text {str(path)!r} cannot be read: {error.strerror}; give a text file") from None
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batches(micro_batch: int, seq: int, seed: int = 0,
            path: str | Path | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), int64 of shape [micro_batch, seq]; targets are the inputs one token later."""
    positive_int("micro-batch", micro_batch)
    positive_int("seq", seq)
    text = tokens(path)
    if len(text) < seq + 2:
        raise BadInput(f"the text has {len(text)} tokens; seq {seq} needs at least {seq + 2}")
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - seq - 1, (micro_batch, 1), generator=generator)
        window = text[starts + torch.arange(seq + 1)]  # [B, T+1]
        yield window[:, :-1].contiguous(), window[:, 1:].contiguous()
