"""Accumulation without reduction: gradients that stay whole until the last micro-batch."""

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, gpt, llama
from gpucourse.errors import BadInput
from gpucourse.evidence import STATES
from gpucourse.predict.layout_traffic import step_traffic

SMALL = dict(vocab=500, context=128)
SHAPES = {"llama": llama("llama", 4, 64, 4, 2, 176, **SMALL), "gpt": gpt("gpt", 4, 64, 4, **SMALL)}
LAST = Layout(dp=4, shard="zero3", reduce="last")
SCALARS = 16  # the loss, its gradient, its running sum


@pytest.mark.parametrize("name, job", (("llama", Job(1, 32, "bf16", accumulate=3)), ("gpt", Job(1, 32, accumulate=2)),
                                       ("gpt", Job(1, 32, "bf16-autocast", accumulate=3)),
                                       ("llama", Job(1, 32, "bf16-autocast", accumulate=2)),
                                       ("llama", Job(1, 32, "bf16-autocast", accumulate=3, layout=Layout(tp=2))),
                                       ("gpt", Job(1, 32, accumulate=2, layout=Layout(tp=2)))), ids=str)
def test_every_instant_equals_the_dry_run(name, job):
    job = job.but(layout=LAST.but(tp=job.layout.tp))
    computed, dry = predict.memory(SHAPES[name], job), dryrun.memory(SHAPES[name], job)
    for instant in dry.at:
        assert abs(computed.total(instant) - dry.total(instant)) <= SCALARS, instant
    assert computed.states() == {kind: dry.at["step"].get(kind, 0) for kind in STATES}


def test_twenty_six_billion_parameters_on_sixteen_ranks():
    """A23: sharded 3.25 GB a rank; unsharded 52."""
    model = llama("26b", 47, 6144, 48, 8, 24576, vocab=48000)
    assert predict.parameters(model).total == pytest.approx(26e9, rel=0.005)
    often, once = (predict.memory(model, Job(1, 4096, "bf16", recompute="full", accumulate=4,
                                             layout=Layout(dp=16, shard="zero3", reduce=reduce)))
                   for reduce in ("always", "last"))
    assert often.states()["gradients"] / 1e9 == pytest.approx(3.25, rel=0.01)
    line = next(line for line in once.lines if line.name == "gradients before reduction")
    assert line.bytes / 1e9 == pytest.approx(52, rel=0.01) and "set_requires_gradient_sync" in line.source
    # while the whole ones are there the sharded ones are not
    assert (once.total("loss") - often.total("loss")) / 1e9 == pytest.approx(52 - 3.25, rel=0.02)


def test_it_spares_reductions():
    job = Job(1, 32, accumulate=8)
    often, once = (step_traffic(SHAPES["llama"], job.but(layout=LAST.but(reduce=reduce)))
                   for reduce in ("always", "last"))
    calls = [{t.collective: t.calls for t in found} for found in (often, once)]
    assert calls[0]["reduce-scatter"] == 8 * calls[1]["reduce-scatter"]
    assert calls[0]["all-gather"] == calls[1]["all-gather"]


def test_one_micro_batch_is_the_last():
    job = Job(1, 32)
    assert predict.memory(SHAPES["gpt"], job.but(layout=LAST)).lines == \
        predict.memory(SHAPES["gpt"], job.but(layout=LAST.but(reduce="always"))).lines


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="reduce is last with shard none; it is about FSDP's gradients"):
        Layout(dp=2, reduce="last")
    with pytest.raises(BadInput, match="reduce 'never' is not known; .*always, last"):
        Layout(dp=2, shard="zero3", reduce="never")
