"""The operations of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), up to its output matrix.

Queries pass through a narrow vector a token, K and V through another; each has an RMSNorm there. K's rotated part is
one for all heads. What attention is given is put together from rotated and unrotated parts, as copies. No dry run holds
this yet; the arithmetic is that of network.attention.
"""

from gpucourse.catalog.jobs import Precision
from gpucourse.predict.axes import Axes
from gpucourse.predict.linears import linear, rms_norm, rotate
from gpucourse.predict.sizes import NOTHING, size
from gpucourse.predict.tape import Op

SOURCE = "latent attention, arXiv 2405.04434: K and V expanded, attention's kernel as for ordinary heads"
Q, K, V = GIVEN = ("whole q", "whole k", "v")
KEPT = (Q, K, "kv")  # v is a part of kv's memory


def projections(precision: Precision, axes: Axes, x: str, saved: str) -> list[Op]:
    """q and k as [n, a, d + rope], v as the part of `kv` that it is."""
    width, a, weights = precision.compute, axes.part("a"), precision.weights
    turned_q, turned_k = f"{a} rope", "rope"
    whole = size(f"n {a} key", width)
    return [
        *linear(precision, "q down", x, "h", "q_rank", False, saved=saved),
        *rms_norm("q down normed", "q down", "n", "q_rank", width, weights, ends=("q down",)),
        *linear(precision, "q up", "q down normed", "q_rank", f"{a} key", False, cast=False),
        *linear(precision, "kv down", x, "h", "kv_down", False, saved=saved),
        *rms_norm("kv down normed", "kv down", "n", "kv_rank", width, weights),
        *linear(precision, "kv", "kv down normed", "kv_rank", f"{a} both", False, cast=False),
        Op("q's turning part", "q's turning part", NOTHING, uses=("q up",), grad=size(f"n {turned_q}", width)),
        *rotate(width, "q rotated", "q's turning part", turned_q),
        Op("k's turning part", "k's turning part", NOTHING, uses=("kv down",), grad=size(f"n {turned_k}", width)),
        *rotate(width, "k rotated", "k's turning part", turned_k),
        Op(Q, Q, whole, uses=("q up", "q rotated"), ends=("q up", "q rotated")),
        Op(K, K, whole, uses=("kv", "k rotated"), ends=("k rotated", "kv down")),
        Op(V, V, NOTHING, uses=("kv",), grad=size(f"n {a} value", width)),
    ]
