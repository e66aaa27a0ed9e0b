"""What attention needs besides its inputs and its result where the sequence is divided: context parallelism.

Ring attention (arXiv 2310.01889) as torch.distributed.tensor.experimental does it, with its defaults: K and V of all
ranks are gathered at once, each rank's block is attended to in turn, and the results and the gradients are summed in
fp32. Of the ranks the last is meant, whose queries see every block whole. Read off torch 2.13; no dry run holds it yet.
"""

from gpucourse.predict.sizes import Size, size

SOURCE = ("ring attention, arXiv 2310.01889; torch.distributed.tensor.experimental context_parallel: all K and V are "
          "gathered, sums are fp32")


def gathered(ranks: int, width: int, k: str) -> Size:
    """K and V of all `ranks`, `width` bytes an element; n is one rank's tokens, and k a dimension's name."""
    return size(f"n {k}", 2 * ranks * width)


def forward_work(ranks: int, width: int, q: str, k: str, heads: str) -> Size:
    """While a block's result is merged into the sum: both, their difference and its part that is added, in fp32.

    The result that attention keeps and its log-sum-exp are not in it; a 16-bit block's result is there beside its copy.
    """
    merging = size(f"n {q}", 16 + width * (width < 4)) + size(f"n {heads}", 3 * 4)
    kept = size(f"n {q}", width) + size(f"n {heads}", 4)
    return gathered(ranks, width, k) + merging + -1 * kept


def backward_work(ranks: int, width: int, q: str, k: str, grouped: bool) -> Size:
    """Beside the gradients of q, k and v that it gives: the fp32 sums, and those of K and V on their way round.

    The highest moment is either that of a block's own backward, with the gradients of the block before still there
    (where queries are at least twice as wide as K: `grouped`), or that of the sums being sent and received.
    """
    sums = gathered(ranks, width, k) + size(f"n {q}", 4)
    if grouped or width == 4:
        return sums + size(f"n {k}", 3 * 2 * 4 + 2 * width) + size(f"n {q}", width)
    return sums + size(f"n {k}", 4 * 2 * 4)
