"""torch's own pipeline over sharded weights, on four real ranks: how often it gathers and reduces, as is predicted."""

import pytest

from gpucourse import ranks
from gpucourse.catalog import Job, Layout, llama
from gpucourse.predict.layout_traffic import step_traffic

SHAPE = llama("llama", 8, 64, 4, 2, 176, vocab=100, context=32)
STAGED = Layout(dp=2, shard="zero3", pp=2)
CASES = [Job(1, 16, accumulate=6, layout=STAGED.but(schedule=schedule, chunks=chunks, reshard=reshard))
         for schedule, chunks in (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4))
         for reshard in ("always", "never")]


def collectives(shape, jobs):
    """Of each job's second step: {kind: (calls, bytes)}."""
    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    from gpucourse.catalog.stages import part, stages_of
    from gpucourse.models.parallel import shard
    from gpucourse.models.training import network

    axes, found = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp")), []
    rank = axes["pp"].get_local_rank()
    tokens = torch.arange(jobs[0].accumulate * 16).view(-1, 16) % shape.vocab
    for job in jobs:
        stages, number = [], job.layout.stages
        for of in stages_of(job.layout, rank):
            model = network(shape, job, "cpu", part(shape.layers, number, of))
            shard(model, job, axes["dp"])
            stages.append(PipelineStage(model, of, number, torch.device("cpu"), group=axes["pp"].get_group()))
        kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}.get(job.layout.schedule, ScheduleInterleaved1F1B)
        schedule = kind(stages[0] if len(stages) == 1 else stages, job.accumulate,
                        loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
        for _ in range(2):
            with ranks.counting() as seen:
                schedule.step(*[tokens] * (rank == 0), **(dict(target=tokens, losses=[]) if rank else {}))
        kinds = ("all-gather", "reduce-scatter")
        calls = {kind: [call.size for call in seen.calls if call.kind == kind] for kind in kinds}
        found.append({kind: (len(sizes), sum(sizes)) for kind, sizes in calls.items()})
    return found


@pytest.fixture(scope="module")
def seen():
    return ranks.run(collectives, 4, SHAPE, CASES, timeout=120)[0]


@pytest.mark.parametrize("i, job", list(enumerate(CASES)), ids=lambda case: str(getattr(case, "layout", "")))
def test_collectives_of_a_step_are_the_predicted_ones(seen, i, job):
    of_data = [t for t in step_traffic(SHAPE, job) if t.axis == "data"]
    for kind, (calls, size) in seen[i].items():
        mine = [t for t in of_data if t.collective == kind]
        assert sum(t.calls for t in mine) == calls
        assert sum(t.calls * t.size for t in mine) == pytest.approx(size, rel=0.005)  # predicted: a norm more
