"""Lesson 04, precision."""

import random
from collections.abc import Callable

from gpucourse.catalog import gpu
from gpucourse.catalog.units import GiB
from gpucourse.exercises.expect import expect_at_most, expect_close, expect_equal
from gpucourse.exercises.kinds import Choice, Code, Guess, Misconception, Parts, Pick, Quantity
from gpucourse.exercises.results import Wrong
from gpucourse.predict.blocks import MXFP4, MXFP8, NVFP4
from gpucourse.predict.formats import BF16, E2M1, E4M3, FP16, Format, rounded

GUESSES = (
    Guess("04.g1", ("bf16", "bf16, fp32 master", "fp32"), "weights moved"),
    Guess("04.g2", ("zero in fp16",), "%"),
)


def becomes(value: float, format: Format, *misconceptions: Misconception, above: float = 0.0, in_: float = 1.0,
            unit: str = "") -> Quantity:
    """What `value` becomes; where neighbours differ by less than a hundredth, how far it is `above` a number."""
    return Quantity(expected=lambda: (rounded(value, format, saturate=True) - above) / in_, unit=unit, within=0,
                    misconceptions=misconceptions)


ROUNDINGS = {
    "1 + 1/256 in bf16, above 1": becomes(
        1 + 1 / 256, BF16,
        Misconception(2, "That is the neighbour above. Halfway between two numbers the even mantissa wins."),
        Misconception(1, "With 7 bits of mantissa the number after 1 is 1 + 1/128."),
        above=1, in_=1 / 256, unit="256ths"),
    "1 + 3/256 in bf16, above 1": becomes(
        1 + 3 / 256, BF16,
        Misconception(2, "That rounds a tie down. Its mantissa is 1, the neighbour's is 2: which is even?"),
        Misconception(3, "With 7 bits of mantissa the numbers above 1 are 128ths apart."),
        Misconception(0, "1 is one and a half steps away; two numbers are nearer."),
        above=1, in_=1 / 256, unit="256ths"),
    "2051 in fp16, above 2048": becomes(
        2051, FP16,
        Misconception(3, "With 10 bits of mantissa and the one that is not stored, odd numbers end at 2048."),
        Misconception(2, "A tie between 2050 and 2052. In steps of 2 from 2048 on, which place is even?"),
        Misconception(0, "That would be bf16's answer, with steps of 16 here. fp16's are 2."),
        above=2048),
    "19 in e4m3": becomes(
        19, E4M3,
        Misconception(19, "With 3 bits of mantissa there are eight numbers from 16 to 32."),
        Misconception(18, "A tie between 18 and 20. Which of the two mantissas is even?"),
        Misconception(16, "That is e5m2's answer to 17; e4m3 has steps of 2 here.")),
    "1000 in e4m3": becomes(
        1000, E4M3,
        Misconception(480, "The code for 480 is taken: it is NaN. What is the largest number below it?"),
        Misconception(240, "That is an e4m3 with infinities. This one has numbers at the top exponent too."),
        Misconception(57344, "That is e5m2's largest number.")),
    "5 in e2m1": becomes(
        5, E2M1,
        Misconception(6, "A tie between 4 and 6. One bit of mantissa: which of them has a 0?"),
        Misconception(5, "The numbers are 0, 0.5, 1, 1.5, 2, 3, 4, 6.")),
    "2e-8 in fp16": becomes(
        2e-8, FP16,
        Misconception(2.0**-24, "That is the smallest number of fp16. Is 2e-8 at least half of it?"),
        Misconception(2e-8, "The smallest number of fp16 is 2⁻²⁴, a subnormal."),
        Misconception(2.0**-14, "That is the smallest *normal* number; there are smaller ones.")),
}


def stands_still(format: Format, added: float) -> float:
    """Where a running sum in `format` stops when `added` is added for ever."""
    total = 0.0
    while (more := rounded(total + added, format)) != total:
        total = more
    return total


def stop(format: Format, added: float, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=lambda: stands_still(format, added), unit="", within=0, misconceptions=misconceptions)


NOT_THE_LARGEST = "The sum stops long before the largest number: when the spacing has outgrown what is added."
STOPS = {
    "fp16, adding 1": stop(
        FP16, 1,
        Misconception(FP16.largest, NOT_THE_LARGEST),
        Misconception(1024, "The spacing at 1024 is 1: adding 1 still moves the sum.")),
    "bf16, adding 1/4": stop(
        BF16, 0.25,
        Misconception(256, "That is where adding 1 stops. What is added here is a quarter of it."),
        Misconception(32, "The spacing at 32 is 1/4: adding 1/4 still moves the sum.")),
    "bf16, adding 3": stop(
        BF16, 3,
        Misconception(768, "The sum is rounded after each addition and does not stay a multiple of 3. When is 3 less "
                           "than half of the spacing?"),
        Misconception(512, "The spacing at 512 is 4, and 3 is more than half of it: the sum moves on, by 4."),
        Misconception(256, "That is where adding 1 stops.")),
    "e4m3, adding 1": stop(
        E4M3, 1,
        Misconception(E4M3.largest, NOT_THE_LARGEST),
        Misconception(8, "The spacing at 8 is 1: adding 1 still moves the sum.")),
}


def looks_at_values():
    """A mode that counts how often Python asks a tensor for a number, and all operations."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Looks(TorchDispatchMode):
        looks = operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            self.looks += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **kwargs or {})

    return Looks()


class PlayedTraining:
    """Weights with drawn gradients under a learner's scaler, beside the same weights with the gradients as they are."""

    def __init__(self, make: Callable, interval: int, weights: int = 3):
        import torch

        shapes = [(7,), (3, 5), (11,), *[(2,)] * weights][:weights]
        self.weights = [torch.randn(shape, requires_grad=True) for shape in shapes]
        self.true = [w.detach().clone().requires_grad_() for w in self.weights]
        unused = torch.zeros(3, requires_grad=True)  # has no gradient
        self.optimizer, self.twin = (torch.optim.SGD([*group, unused], lr=0.1, momentum=0.9)
                                     for group in (self.weights, self.true))
        self.scaler = make(2.0**12, interval)

    def step(self, bad: float | None = None) -> bool | None:
        """One step; `bad` is put into one place of one gradient."""
        import torch

        for weight, twin in zip(self.weights, self.true, strict=True):
            twin.grad = torch.randn_like(weight)
            weight.grad = twin.grad * float(self.scaler.scale)
        if bad is None:
            self.twin.step()
        else:  # never in the last gradient, which is the one that a careless check looks at
            random.choice(self.weights[:-1]).grad.view(-1)[-1] = bad
        stepped = self.scaler.step(self.optimizer)
        return None if stepped is None else bool(stepped)

    @property
    def scale(self) -> float:
        return float(self.scaler.scale)

    def apart(self) -> list[float]:
        """The largest difference from the twin, for each weight."""
        return [(w - t).abs().max().item() for w, t in zip(self.weights, self.true, strict=True)]


def run_loss_scaler(make):
    interval = random.choice((3, 4, 5))
    played = PlayedTraining(make, interval)
    taken = [played.step() for _ in range(2)]
    yield expect_equal("good steps are taken", taken, [True, True], note="`step` returns whether it stepped.")
    yield expect_close("weights after them, against gradients that were never scaled", played.apart(), [0.0] * 3,
                       atol=1e-5, note="The optimizer saw gradients that are still multiplied by the scale.")
    for name, bad in (("inf", float("inf")), ("-inf", -float("inf")), ("nan", float("nan"))):
        before = played.scale
        yield expect_equal(f"a step with one {name} is skipped", played.step(bad), False,
                           note="One value that is not finite, in any gradient, spoils the step.")
        yield expect_close(f"weights after {name}: as they were", played.apart(), [0.0] * 3, atol=1e-5,
                           note="A skipped step changes nothing. With gradients of zero it is still a step: momentum "
                                "moves the weights.")
        yield expect_close(f"the scale after {name}, relative to before", played.scale / before, 0.5, atol=0,
                           note="A bad step halves the scale.")
    played.step()
    yield expect_close("weights after one more good step", played.apart(), [0.0] * 3, atol=1e-5,
                       note="The optimizer's state after skipped steps is not what it was.")
    fresh = PlayedTraining(make, interval)
    trace = [(fresh.step(), fresh.scale / 2.0**12)[1] for _ in range(2 * interval)]
    yield expect_close(f"the scale over {2 * interval} good steps, interval {interval}", trace,
                       [1.0] * (interval - 1) + [2.0] * interval + [4.0], atol=0,
                       note="After `interval` good steps in a row the scale doubles, and the count begins anew.")
    fresh = PlayedTraining(make, interval)
    steps = [None] * (interval - 1) + [float("inf")] + [None] * interval
    trace = [(fresh.step(bad), fresh.scale / 2.0**12)[1] for bad in steps]
    yield expect_close("the scale when an overflow comes just before it would double", trace,
                       [1.0] * (interval - 1) + [0.5] * interval + [1.0], atol=0,
                       note="In a row: a bad step sets the count of good ones back to none.")
    many = PlayedTraining(make, interval, weights=40)
    yield expect_at_most("looks at values in a step with 40 weights", looks_within_a_step(many), 1, "looks",
                         note="Each look waits for the device. Put the answers for all gradients into one tensor.")


def looks_within_a_step(played: PlayedTraining) -> int:
    import torch

    for weight in played.weights:
        weight.grad = torch.ones_like(weight)
    with looks_at_values() as counted:
        played.scaler.step(played.optimizer)
    return counted.looks


def broken_scaler(unscale=True, looks="all", skip="skip", grow=True, reset=True, halve=True, one_look=True):
    class LossScaler:
        def __init__(self, scale, interval):
            self.scale, self.interval, self.good = scale, interval, 0

        def step(self, optimizer):
            import torch

            weights = [w for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
            if unscale:
                for weight in weights:
                    weight.grad /= self.scale
            seen = weights[-1:] if looks == "last" else weights
            bad = [w.grad.isnan().any() if looks == "nan" else ~w.grad.isfinite().all() for w in seen]
            overflow = torch.stack(bad).any().item() if one_look else any(b.item() for b in bad)
            if overflow:
                if halve:
                    self.scale /= 2
                if reset:
                    self.good = 0
                if skip == "zero":
                    for weight in weights:
                        weight.grad.zero_()
                if skip != "skip":
                    optimizer.step()
                return False
            optimizer.step()
            self.good += 1
            if grow and self.good == self.interval:
                self.scale, self.good = self.scale * 2, 0
            return True
    return LossScaler


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
    again, other = function(x, generator(first)), function(x.expand(50, count).contiguous(), generator(first + 1))
    yield expect_equal("the same generator state gives the same draws",
                       torch.equal(again, function(x, generator(first))) and not bool((other == other[0]).all()), True,
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


BATCHES, LARGE_TARGETS, UNUSABLE = 8, 3, 5  # of which one has targets of 300, and one inputs that fp16 cannot hold


def nan_batches() -> list:
    import torch

    batches = [(torch.randn(16, 12), torch.randn(16, 1).half()) for _ in range(BATCHES)]
    batches[LARGE_TARGETS] = (torch.randn(16, 12), (300 + torch.randn(16, 1)).half())
    batches[UNUSABLE] = (torch.randn(16, 12) * 1e7, torch.randn(16, 1).half())
    return batches


def small_net(seed: int):
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))


def in_fp32(model, batches) -> None:
    """What the loop should end with: the same batches without the unusable one, in fp32."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index, (x, y) in enumerate(batches):
        if index != UNUSABLE:
            (model(x) - y.float()).square().mean().sqrt().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def flat(model):
    import torch

    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained_by(function, seed: int, batches, scale: float):
    """The weights after the learner's loop, the gradient norms that the optimizer saw, and the types of products."""
    import torch

    model, norms, types = small_net(seed), [], set()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_pre_hook(lambda *_: norms.append(
        torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()))
    for layer in (model[0], model[2]):
        layer.register_forward_hook(lambda module, given, out: types.add(str(out.dtype)))
    function(model, optimizer, batches, torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10_000))
    return flat(model), norms, sorted(types)


def run_mended(function):
    seed, batches = random.randrange(2**31), nan_batches()
    weights, norms, types = trained_by(function, seed, batches, 2.0**8)
    yield expect_equal("weights that are not finite", (~weights.isfinite()).sum().item(), 0,
                       note="The optimizer took a gradient that was not finite. Which call looks first, and skips?")
    yield expect_equal("types of the products", types, ["torch.float16"], note="The products must stay in fp16.")
    yield expect_equal("steps taken", len(norms), BATCHES - 1, note="One batch cannot be used in fp16, the others can.")
    yield expect_equal("steps with a gradient of zero", norms.count(0.0), 0,
                       note="One batch has targets near 300. In which type is the difference squared, and what is the "
                            "slope of a root at infinity?")
    yield expect_at_most("largest gradient norm that reached the optimizer", max(norms, default=0.0), 1.001,
                         note="The gradient that reaches the optimizer is not clipped to 1.")
    start, reference = flat(small_net(seed)), small_net(seed)
    in_fp32(reference, batches)
    path = (flat(reference) - start).norm()
    note, for_what = "Clipping came while the gradients were still multiplied by the scale.", "for fp16's rounding"
    yield expect_at_most("distance from the fp32 loop's end, relative to the way travelled",
                         ((weights - flat(reference)).norm() / path).item(), 0.05, reason=for_what, note=note)
    other, _, _ = trained_by(function, seed, batches, 2.0**5)
    yield expect_at_most("distance between the ends with two loss scales, relative to the way",
                         ((weights - other).norm() / path).item(), 0.05, reason=for_what, note=note)


def loop(fp16=True, square="fp32", clip="after", step="scaler"):
    def train(model, optimizer, batches, scaler):
        import torch

        for x, y in batches:
            with torch.autocast("cpu", torch.float16, enabled=fp16):
                out = model(x)
            loss = ((out.float() - y.float()) if square == "fp32" else (out.half() - y)).square().mean().sqrt()
            scaler.scale(loss).backward()
            if clip == "before":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            if clip == "after":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer) if step == "scaler" else optimizer.step()
            scaler.update()
            optimizer.zero_grad()
    return train


ELEMENTS = 8e9


def weights_gib(bits: float, *misconceptions: Misconception) -> Quantity:
    return Quantity(expected=ELEMENTS * bits / 8 / GiB, unit="GiB", within=1e-3, misconceptions=(
        Misconception(ELEMENTS * bits / 8 / 1e9, "That is GB: a GiB is 2³⁰ bytes."), *misconceptions))


NO_SCALE = "That leaves out the block's scale."
BITS = {
    "mxfp8, bits": Quantity(expected=MXFP8.bits, unit="bits", within=0, misconceptions=(
        Misconception(8, NO_SCALE),
        Misconception(16, "The 8 bits of the scale are shared by the whole block."),
        Misconception(8.5, "Its blocks have 32 elements."))),
    "nvfp4, bits": Quantity(expected=NVFP4.bits, unit="bits", within=0, misconceptions=(
        Misconception(4, NO_SCALE),
        Misconception(4.25, "That is a block of 32. NVFP4 has blocks of 16."))),
    "bf16, GiB": weights_gib(16),
    "mxfp8, GiB": weights_gib(MXFP8.bits, Misconception(ELEMENTS / GiB, NO_SCALE)),
    "mxfp4, GiB": weights_gib(MXFP4.bits, Misconception(ELEMENTS / 2 / GiB, NO_SCALE)),
    "nvfp4, GiB": weights_gib(NVFP4.bits, Misconception(ELEMENTS / 2 / GiB, NO_SCALE)),
}

WAYS = ("fp32", "tf32", "fp16 + loss scale", "bf16 autocast", "bf16 + stochastic rounding", "fp8")


def sixteen_bits(card: str) -> str:
    """What a card's tensor cores multiply in 16 bits, and what it takes to train in it."""
    return "bf16 autocast" if "bf16" in gpu(card).tflops else "fp16 + loss scale"


def has(card: str, kind: str) -> str:
    return kind if kind in gpu(card).tflops else sixteen_bits(card)


def way(right: Callable[[], str] | str, **why: str) -> Pick:
    reasons = {"fp32": "The tensor cores stand idle: look at the first column of the table of peaks.",
               "tf32": "That keeps fp32's bytes. Is there nothing faster on this device, or nothing like it at all?",
               "fp16 + loss scale": "It works, and needs a scale to be searched. What on this device needs none?",
               "bf16 autocast": "Look at the table of peaks, and at what autocast stores.",
               "bf16 + stochastic rounding": "It saves memory and pays with noise. Is memory what is short here?",
               "fp8": "Look at the table of peaks: does this device multiply it, and has the recipe been tried?"}
    named = {"fp16": "fp16 + loss scale", "bf16": "bf16 autocast", "stochastic": "bf16 + stochastic rounding"}
    return Pick(options={key: key for key in WAYS}, right=right,
                why=reasons | {named.get(key, key): says for key, says in why.items()})


SITUATIONS = {
    "T4": way(lambda: sixteen_bits("t4"),
              bf16="A T4 has no rate for bf16: it is emulated there, and slower than fp32."),
    "A100": way(lambda: sixteen_bits("a100-80")),
    "A100, no code to change": way(lambda: has("a100-80", "tf32"),
                                   bf16="Autocast is code: a context around the forward pass.",
                                   fp32="One setting makes the same program use the tensor cores."),
    "H100, large products": way(lambda: has("h100-sxm", "fp8"),
                                bf16="It is the safe choice, at half of the rate. The situation says that the step is "
                                     "products and that the recipe has been tried."),
    "full bf16 at 1e-5": way("bf16 + stochastic rounding",
                             bf16="Autocast stores fp32 weights, gradients and moments: 16 bytes a parameter.",
                             fp8="fp8 products leave weights, gradients and moments as they are: 16 bytes a parameter.",
                             fp16="That stores 16 bytes a parameter as well.", fp32="16 bytes a parameter.",
                             tf32="tf32 changes products, not bytes: 16 a parameter."),
    "laptop": way("fp32", bf16="Emulated: its products take many times as long as fp32's.",
                  fp16="Most CPUs have no fast kernel for it at all.", tf32="Only tensor cores read fp32 that way.",
                  stochastic="The products would still be emulated.", fp8="Nothing here multiplies 8-bit floats."),
}

EXERCISES = (
    Parts("04.1", "What does it become?", parts=ROUNDINGS,
          hints=("For each: between which two powers of two does it lie, and how far apart are the numbers there?",
                 "Spacing = 2^(exponent − mantissa bits). Divide, round to a whole number, multiply; a tie goes to the "
                 "even one.",
                 "Steps: 1/128 at 1 in bf16, 2 at 2048 in fp16, 2 at 16 in e4m3. The largest number of e4m3 is 448, "
                 "the smallest of fp16 2⁻²⁴; e2m1 has 4 and 6.")),
    Parts("04.2", "Where a sum stops", parts=STOPS,
          hints=("What must the spacing at the sum be, so that adding the number changes nothing?",
                 "The sum stops where the number is less than half of the spacing, or half of it and the sum is even.",
                 "Spacing is 2^(e − m) between 2^e and 2^(e+1), with m = 10, 7, 3. Find the first power of two at "
                 "which the number is at most half of it.")),
    Code("04.3", "A dynamic loss scaler", run=run_loss_scaler,
         broken={"never unscales": (broken_scaler(unscale=False), "still multiplied by the scale"),
                 "looks at the last gradient only": (broken_scaler(looks="last"), "in any gradient, spoils the step"),
                 "looks for NaN only": (broken_scaler(looks="nan"), "in any gradient, spoils the step"),
                 "steps all the same": (broken_scaler(skip="no"), "A skipped step changes nothing"),
                 "steps with zeros": (broken_scaler(skip="zero"), "With gradients of zero it is still a step"),
                 "never halves": (broken_scaler(halve=False), "A bad step halves the scale"),
                 "never grows": (broken_scaler(grow=False), "the scale doubles"),
                 "counts on after an overflow": (broken_scaler(reset=False), "sets the count of good ones back"),
                 "one look a gradient": (broken_scaler(one_look=False), "Each look waits for the device")},
         hints=("Three things to keep: the scale, the interval, and how many good steps there were in a row.",
                "p.grad.isfinite().all() is a tensor with one truth value. torch.stack makes one tensor of many; "
                ".all().item() is one look.",
                "Divide every gradient; look once; if bad: halve, count = 0, return False. Else optimizer.step(), "
                "count + 1, and at the interval double and count from 0.")),
    Code("04.4", "Stochastic rounding", run=run_stochastic,
         broken={"to the nearest": (lambda x, generator: x.bfloat16(), "The mean is off"),
                 "a coin": (towards(lambda place, x, g: uniform(x, g) < 0.5), "The mean is off"),
                 "always away from zero": (towards(lambda place, x, g: place > 0), "The mean is off"),
                 "always towards zero": (towards(lambda place, x, g: place > 2), "The mean is off"),
                 "the wrong neighbour": (towards(lambda place, x, g: uniform(x, g) > place), "The mean is off"),
                 "negative values the other way": (
                     towards(lambda place, x, g: uniform(x, g) < place.where(x > 0, 1 - place)), "a negative value"),
                 "half of the noise": (towards(lambda place, x, g: uniform(x, g) / 2 + 0.5 < place), "The mean is off"),
                 "noise too wide": (plus_noise, "never one further away"),
                 "chance of its own": (own_chance, "the only source of chance"),
                 "returns fp32": (lambda x, generator: x, "Return a bf16 tensor"),
                 "one value at a time": (one_at_a_time, "one at a time")},
         hints=("If a value lies a tenth of the way from one neighbour to the other, how often must it go there?",
                "The lower 16 bits of the fp32 pattern, as a whole number over 65,536, are that tenth. A random number "
                "below 65,536, added to it, carries into the upper half exactly that often.",
                "x.view(torch.int32) + torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32), then "
                "clear the lower half with & ~0xFFFF, view as float32, cast.")),
    Code("04.5", "A run that turns to NaN", run=run_mended,
         broken={"as it was": (loop(square="fp16", clip="before", step="optimizer"), "Which call looks first"),
                 "steps without looking": (loop(step="optimizer"), "Which call looks first"),
                 "clips scaled gradients": (loop(clip="before"), "still multiplied by the scale"),
                 "squares in fp16": (loop(square="fp16"), "In which type is the difference squared"),
                 "no clip": (loop(clip="never"), "not clipped to 1"),
                 "fp32 all over": (loop(fp16=False), "must stay in fp16")},
         hints=("Go down the loop: what is the largest number that each line may meet in fp16? And what are the "
                "gradients multiplied by when they are clipped?",
                "Square in fp32. Bring the gradients back to their size before clipping. Let the scaler decide about "
                "the step.",
                "(out.float() - y.float()).square().mean().sqrt(); scaler.scale(loss).backward(); "
                "scaler.unscale_(optimizer); clip; scaler.step(optimizer); scaler.update().")),
    Parts("04.6", "Bits for a scale", parts=BITS,
          hints=("How many bits does a whole block take, scale included? Divide by its elements.",
                 "MXFP8: (32 · 8 + 8) / 32. NVFP4: (16 · 4 + 8) / 16. Then bits / 8 · 8e9 / 2³⁰.")),
    Parts("04.7", "A precision for a card", parts=SITUATIONS,
          hints=("For each: what can the device multiply fast? And what is short: time, memory, changes to the code?",
                 "The table of peaks answers the first four. For the fifth, count the bytes a parameter that each way "
                 "stores. For the last, ask what emulated means for the time.")),
    Choice("04.8", "What was rounded away?",
           options={"a": "the weights are stored in fp16 and no longer move",
                    "b": "as the model improves, more of the gradient is below the smallest number of fp16 and becomes "
                         "zero",
                    "c": "the optimizer skips the steps in which a gradient overflows",
                    "d": "the loss is a mean in fp16, and stands still at a tie"},
           right="b",
           why={"a": "Autocast stores fp32 weights: they take any update that arrives. What arrives?",
                "c": "No gradient was infinite, so nothing was skipped.",
                "d": "A loss that were rounded would still have a gradient; and it falls, only slowly."},
           hints=("What does a scale of 1 mean for the small gradients?",
                  "Look at the picture of ranges again. Which way does the histogram move as the model improves?")),
)
