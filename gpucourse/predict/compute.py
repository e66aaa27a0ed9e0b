"""FLOPs a token under the three conventions in use, and the roofline."""

from dataclasses import dataclass

from gpucourse.catalog.shapes import Shape
from gpucourse.errors import positive, positive_int, unknown
from gpucourse.predict.parameters import parameters

# Each counts 6 FLOPs a parameter and token (2 forward, 4 backward) and the attention's own matrix products. They differ
# in which parameters count and in whether the masked half of attention does.
CONVENTIONS = {
    "palm": "6·N + 12·L·h·s: every parameter, attention in full (PaLM, arXiv 2204.02311, appendix B)",
    "no-embedding": "6·(N − E) + 12·L·h·s: without the input embedding (torchtitan since 2024-12)",
    "causal": "6·(N − E) + 6·L·h·s: without the embedding and the masked half of attention (Megatron Bridge)",
}


@dataclass(frozen=True)
class Flops:
    """FLOPs a token, forward and backward: of the parameters' matrix products, and of attention's two."""

    linear: float
    attention: float

    @property
    def total(self) -> float:
        return self.linear + self.attention


def flops_per_token(shape: Shape, seq: int, convention: str = "palm") -> Flops:
    """What a training step must compute for one token of a sequence of `seq`; experts count as far as they are used.

    12·L·h·s is 6·L·a·(d_qk + d_v)·s with d_qk = d_v = h/a. A tied embedding multiplies as the head, so it stays in N.
    """
    positive_int("seq", seq)
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    count = parameters(shape)
    lookups = count.positions + (0 if shape.tied else count.embedding)
    multiplied = count.active - (0 if convention == "palm" else lookups)
    low = shape.latent
    head_sizes = shape.head_size + low.rope_size + low.value_size if low else 2 * shape.head_size
    attention = 6 * shape.layers * shape.heads * head_sizes * seq
    return Flops(6 * multiplied, attention / 2 if convention == "causal" else attention)


def hardware_flops_per_token(shape: Shape, seq: int, convention: str = "palm", recompute: str = "none") -> Flops:
    """What the GPU computes for one token, with what `recompute` runs a second time.

    full: the forward again, so 6·N becomes 8·N and 12·L·h·s becomes 16·L·h·s. layer-K: that for every K-th layer.
    attention: only attention's products again. op: matrix products and attention are kept, so nothing that counts.
    op-2: of q, k, v, attention's output and the MLP's matrices, in their order, the second, the fourth and so on.
    """
    model = flops_per_token(shape, seq, convention)
    linear, attention = (_second_products(shape), 0) if recompute == "op-2" else _recomputed(recompute)
    return Flops(model.linear * (1 + linear / 3), model.attention * (1 + attention / 3))


def _recomputed(recompute: str) -> tuple[float, float]:
    """The share of the forward pass that runs again: of the linear layers, and of attention."""
    known = {"none": (0, 0), "op": (0, 0), "attention": (0, 1), "full": (1, 1)}
    every = recompute.removeprefix("layer-")
    if recompute != every and every.isdecimal() and int(every) > 0:
        return 1 / int(every), 1 / int(every)
    if recompute not in known:
        raise unknown("recompute", recompute, [*known, "op-2", "layer-K"])
    return known[recompute]


def _second_products(shape: Shape) -> float:
    """The share of the forward pass's linear layers that every second product of a block is; the last ends a block."""
    h, wide = shape.hidden, shape.heads * shape.head_size
    again = h * shape.kv_hidden + wide * h + (h * shape.ffn if shape.mlp == "swiglu" else 0)
    return shape.layers * again / parameters(shape).active


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """The roofline (Williams et al. 2009): FLOP/s that an operation of `intensity` FLOPs a byte can reach."""
    return min(peak, positive("intensity", intensity) * bandwidth)


def ridge(peak: float, bandwidth: float) -> float:
    """The intensity, FLOPs a byte, above which compute and not memory is the limit."""
    return peak / bandwidth
