"""Check of 04.5: an fp16 loop that meets a batch it cannot use, beside an fp32 loop without that batch."""

import random

from gpucourse.exercises.expect import expect_at_most, expect_equal

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
    lost = 0.0 in norms  # its own line says so, and it moves the end too
    note = "" if lost else "Clipping came while the gradients were still multiplied by the scale."
    for_what = "for fp16's rounding"
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
