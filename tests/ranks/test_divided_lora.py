"""Adapters on a model that two ranks divide: the same training as on one, and no collective that adapters add."""

import pytest

from gpucourse import ranks
from gpucourse.catalog import Job, Layout, gpt, llama

SMALL = dict(vocab=100, context=32)
SHAPES = (llama("llama", 2, 32, 4, 2, 88, **SMALL), gpt("gpt", 2, 32, 4, **SMALL))
LAYOUTS = (Layout(tp=2), Layout(tp=2, sequence_parallel=True))


def trained(shapes, layouts):
    """Of each shape and layout: losses on one rank, losses divided, collectives with adapters and without."""
    from collections import Counter

    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh

    from gpucourse.models.parallel import divide
    from gpucourse.models.training import by_mesh, network

    mesh, found = init_device_mesh("cpu", (2,)), []

    def drawn(shape, lora):
        torch.manual_seed(0)
        model = network(shape, Job(2, 16, lora=lora))
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)  # B begins as zero, and would hide mistakes
        return model

    def steps(model, tokens):
        optimizer, losses = torch.optim.SGD(by_mesh(p for p in model.parameters() if p.requires_grad), lr=1.0), []
        for _ in range(3):
            with ranks.counting() as seen:
                loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, Counter((call.kind, call.size) for call in seen.calls)

    for shape in shapes:
        tokens = torch.arange(32).view(2, 16) % shape.vocab
        for layout in layouts:
            models = [drawn(shape, lora) for lora in (4, 4, 0)]
            for model in models[1:]:
                divide(model, layout, mesh)
            models[2].embedding.requires_grad_(False)  # as adapters leave it
            (alone, _), (divided, calls), (_, without) = (steps(model, tokens) for model in models)
            names = [name for name, p in models[1].named_parameters() if p.requires_grad]
            found.append((alone, divided, calls, without, {name.split(".")[-2] for name in names}))
    return found


@pytest.fixture(scope="module")
def seen():
    return ranks.run(trained, 2, SHAPES, LAYOUTS, timeout=120)[0]


@pytest.mark.parametrize("i", range(len(SHAPES) * len(LAYOUTS)))
def test_two_ranks_train_adapters_as_one_does(seen, i):
    alone, divided, _, _, parts = seen[i]
    assert divided == pytest.approx(alone, rel=1e-5) and alone[0] > alone[2]
    assert parts == {"a", "b"}


@pytest.mark.parametrize("i", range(len(SHAPES) * len(LAYOUTS)))
def test_adapters_add_no_collective(seen, i):
    _, _, calls, without, _ = seen[i]
    assert calls and not calls - without  # the first block's input has no gradient: one less
