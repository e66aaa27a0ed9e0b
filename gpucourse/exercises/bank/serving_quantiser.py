"""Check of 06.7: a cache in 8 bits, one scale for each token of each head."""

from gpucourse.exercises.expect import expect_at_most, expect_equal


def run_quantise(function):
    """Within half a step of each token's own scale, and one scale for each token of each head."""
    import torch

    x = torch.randn(2, 3, 40, 64)
    x[0, 1, 7] *= 300  # one large token
    x[1, 2, 5] = 0  # padding, whose scale may be anything
    answer = function(x.clone())
    yield expect_equal("two tensors come back", len(answer) if isinstance(answer, tuple) else answer, 2)
    q, scale = answer
    yield expect_equal("the dtype that is kept", str(q.dtype), "torch.int8")
    yield expect_equal("its shape", tuple(q.shape), tuple(x.shape))
    yield expect_at_most("numbers in the scale", scale.numel(), x.numel() // 64, "",
                         reason="for one each of 64 elements",
                         note="A scale for each element costs more than it saves.")
    step = x.abs().amax(-1, keepdim=True) / 127  # of each token of each head
    back = q.float() * scale
    off = (back - x).abs() / step.clamp(min=1e-30)
    ends = x.abs() > 0.996 * x.abs().amax(-1, keepdim=True)
    ends[1, 2, 5] = False
    yield expect_at_most("the largest value of each token: error in its steps", off[ends].max().item(), 0.51, "",
                         note="int8 ends at 127: a value that scales to 128 wraps round to −128. Or the scale is not "
                              "this token's own.")
    yield expect_at_most("all others: error in steps of their own token's scale", off[~ends].max().item(), 0.51, "",
                         note="More than half a step. Is the value rounded or cut off, and does one large token set "
                              "the scale of all the others?")


def broken_quantise(top=127, dims=(-1,), rounded=True, clamp=True):
    def quantise(x):
        import torch

        scale = ((x.abs().amax(dims, keepdim=True) if dims else x.abs()) / top).clamp(min=1e-12)
        y = (x / scale).round() if rounded else (x / scale).trunc()
        y = y.clamp(-127, 127) if clamp else ((y + 128) % 256) - 128
        return y.to(torch.int8), scale
    return quantise
