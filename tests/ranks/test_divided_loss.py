"""A loss in parts on a model that two ranks divide: the same training as on one."""

import pytest

from gpucourse import ranks
from gpucourse.catalog import Job, Layout, gpt, llama

SMALL = dict(vocab=100, context=32)
SHAPES = (llama("llama", 2, 32, 4, 2, 88, **SMALL), gpt("gpt", 2, 32, 4, **SMALL))
LAYOUTS = (Layout(tp=2), Layout(tp=2, vocab_parallel_loss=True))


def trained(shapes, layouts):
    """Of each shape and layout: losses on one rank; losses divided; elements of all logits gathered in a step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from gpucourse.models.parallel import divide
    from gpucourse.models.training import Training, network

    mesh, found = init_device_mesh("cpu", (2,)), []
    for shape in shapes:
        tokens = torch.arange(32).view(2, 16) % shape.vocab
        for layout in layouts:
            alone = Job(2, 16, chunked_loss=3, optimizer="sgd")
            results = []
            for job in (alone, alone.but(layout=layout)):
                torch.manual_seed(0)
                model = network(shape, job)
                if job.layout.tp > 1:
                    divide(model, layout, mesh)
                training = Training(shape, job, model=model)
                with ranks.counting() as seen:
                    results.append([training.step(tokens, tokens.roll(-1, 1)).item() for _ in range(3)])
            found.append((*results, sum(call.size for call in seen.calls if call.kind == "all-gather") / 4 / 3))
    return found


@pytest.fixture(scope="module")
def seen():
    return ranks.run(trained, 2, SHAPES, LAYOUTS, timeout=120)[0]


@pytest.mark.parametrize("i", range(len(SHAPES) * len(LAYOUTS)))
def test_two_ranks_train_as_one_does(seen, i):
    alone, divided, _ = seen[i]
    assert divided == pytest.approx(alone, rel=1e-5) and alone[0] > alone[2]


@pytest.mark.parametrize("i", range(len(SHAPES) * len(LAYOUTS)))
def test_whole_logits_are_gathered_forward_and_again_in_backward(seen, i):
    whole = not LAYOUTS[i % len(LAYOUTS)].vocab_parallel_loss
    assert seen[i][2] == whole * 2 * 32 * 100
