"""Cross-entropy in parts: logits exist for some of the tokens at a time, and are made again in backward."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def chunked_loss(hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, parts: int) -> Tensor:
    """Mean cross-entropy of head(hidden) in `parts` parts: hidden [n, H], targets [n] int64.

    Every token counts alike however many are in its part: sums are added up, and divided once.
    """
    pairs = zip(hidden.chunk(parts), targets.chunk(parts), strict=True)
    sums = (checkpoint(summed, head, some, of_them, use_reentrant=False, preserve_rng_state=False)
            for some, of_them in pairs)
    return sum(sums) / len(targets)


def summed(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(at_least_fp32(head(hidden)), targets, reduction="sum")  # no name holds the 16-bit logits


def at_least_fp32(logits: Tensor) -> Tensor:
    """A 16-bit sum over many tokens would have two or three digits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
