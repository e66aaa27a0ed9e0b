"""Check of 04.4: stochastic rounding, its mean held against the value in standard errors."""

import random
from collections.abc import Callable

from gpucourse.exercises.bank.precision_looks import looks_at_values
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.results import Wrong


def between_neighbours(count: int):
    """fp32 values between two numbers of bf16, [count]; the lower and upper bits, and how far up each lies, 0 to 1."""
    import torch

    exponents = torch.randint(40, 210, (count,), dtype=torch.int32)
    upper = exponents << 7 | torch.randint(128, (count,), dtype=torch.int32)
    place = torch.empty(count).uniform_(0.03, 0.97)
    place[: count // 3].uniform_(0.04, 0.2)  # wrong ways to draw differ most where a neighbour is near
    place[-(count // 3):].uniform_(0.8, 0.96)
    lower = (place * 65536).to(torch.int32)
    sign = torch.tensor([0, -(2**31)], dtype=torch.int64)[torch.arange(count) % 2].to(torch.int32)
    return ((upper << 16 | lower) | sign).view(torch.float32), lower.double() / 65536


def run_stochastic(function):
    """Values between two numbers of bf16; the mean of many draws is held against them in standard errors."""
    import torch

    def generator(seed: int):
        return torch.Generator().manual_seed(seed)

    first, draws, count = random.randrange(2**31), 20_000, 12
    with looks_at_values() as counted:
        got = function(torch.randn(20, 25), generator(first))
    yield expect_equal("type of the result", str(getattr(got, "dtype", type(got).__name__)), "torch.bfloat16",
                       note="Return a bf16 tensor.")
    cost = expect_at_most("operations for 500 values", counted.operations, 40, "operations",
                          note="Values are being handled one at a time. The whole tensor can be.")
    yield cost
    if not cost.ok:
        return
    exact = torch.randn(4, 50).bfloat16().float()
    yield expect_close("values that bf16 can hold", function(exact, generator(first)), exact, atol=0,
                       note="A number that bf16 has is its own neighbour: there is nothing to draw.")
    x, place = between_neighbours(count)
    got = function(x.expand(draws, count).contiguous(), generator(first))
    if tuple(got.shape) != (draws, count):
        raise Wrong(f"expected shape {(draws, count)}, got {tuple(got.shape)}", "Keep the shape of the input.")
    down = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)  # towards zero
    up = ((x.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32)
    taken_up, taken_down = got.float() == up, got.float() == down
    yield expect_equal("draws that are neither of the two neighbours", (~(taken_up | taken_down)).sum().item(), 0,
                       note="The result is the number of bf16 just below or just above, never one further away.")
    spread = (place * (1 - place) / draws).sqrt()
    away = ((taken_up.double().mean(0) - place) / spread).abs().max().item()
    yield expect_at_most(f"distance of the mean of {draws:,} draws from the value", away, 6, "standard errors",
                         note="The mean is off. How often must a value be rounded away from zero that lies a tenth of "
                              "the way there, and does a negative value lie where you think?")
    many = x.expand(50, count).contiguous()  # so many that two streams of chance never agree on all
    one, again, other = (function(many, generator(seed)) for seed in (first, first, first + 1))
    yield expect_equal("the same generator state gives the same draws",
                       (torch.equal(one, again), torch.equal(one, other)), (True, False),
                       note="`generator` must be the only source of chance, and it must be used.")


def towards(choose: Callable):
    """A cast that takes the neighbour away from zero where choose(place, x, generator) says so."""
    def stochastic_bf16(x, generator):
        import torch

        code = x.view(torch.int32)
        place = (code & 0xFFFF).double() / 65536
        up = choose(place, x, generator) & (place > 0)
        return ((code & ~0xFFFF) + (up.to(torch.int32) << 16)).view(torch.float32).bfloat16()
    return stochastic_bf16


def uniform(x, generator):
    import torch

    return torch.rand(x.shape, generator=generator, dtype=torch.float64)


def one_at_a_time(x, generator):
    import torch

    return torch.stack([towards(lambda place, v, g: uniform(v, g) < place)(v, generator) for v in x.flatten()])


def own_chance(x, generator):
    import torch

    return towards(lambda place, v, g: torch.rand(v.shape, dtype=torch.float64) < place)(x, generator)


def plus_noise(x, generator):
    """Noise as wide as a whole step each way, then the nearest: right in the mean, but too far away at times."""
    import torch

    step = ((x.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32) - \
        (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    noise = (uniform(x, generator).float() - 0.5) * 2 * step
    exact = (x.view(torch.int32) & 0xFFFF) == 0
    return torch.where(exact, x, x + noise).bfloat16()
