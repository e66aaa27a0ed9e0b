"""Arithmetic of steps: how many passes make one, and after how many a one-off cost is repaid."""

from gpucourse.errors import BadInput, positive, positive_int


def break_even(cost: float, before: float, after: float) -> float:
    """Steps after which a one-off `cost` in seconds is repaid, steps taking `before` and then `after` seconds.

    Infinite where a step does not get faster.
    """
    for what, value in (("cost", cost), ("before", before), ("after", after)):
        positive(what, value)
    return cost / (before - after) if after < before else float("inf")


def accumulation(global_batch: int, micro_batch: int, data_parallel: int = 1) -> int:
    """Forward passes a rank makes before the optimizer steps. Batches in sequences."""
    each = positive_int("micro-batch", micro_batch) * positive_int("data-parallel ranks", data_parallel)
    if positive_int("global batch", global_batch) % each:
        raise BadInput(f"global batch {global_batch} is not a multiple of {each} = {micro_batch} a micro-batch × "
                       f"{data_parallel} ranks; change one of them")
    return global_batch // each
