"""Collectives that recomputation repeats: predicted, and counted in a dry run of two depths."""

from collections import Counter

import pytest

from gpucourse.catalog import Job, Layout, llama
from gpucourse.dryrun import ledger
from gpucourse.predict.layout_traffic import step_traffic

NAMES = {"all_reduce": "all-reduce", "reduce_scatter_tensor": "reduce-scatter", "all_gather_into_tensor": "all-gather"}
STEPS = 2  # that a dry run takes


class Counting(ledger.InstantLedger):
    """counted: collectives of tensor parallelism over whole activations, which are many times a norm's gradient."""

    counted: Counter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kind = NAMES.get(func._overloadpacket.__name__) if func.namespace == "_c10d_functional" else None
        if kind and args[0].numel() > 64:
            self.counted[kind] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def counted(monkeypatch, shape, job) -> Counter:
    monkeypatch.setattr(ledger, "InstantLedger", Counting)
    Counting.counted = Counter()
    ledger.step_ledger(shape, job)
    return Counting.counted


@pytest.mark.parametrize("layout", (Layout(tp=2), Layout(tp=2, sequence_parallel=True)), ids=str)
@pytest.mark.parametrize("recompute", ("none", "attention", "op", "op-2", "full", "layer-2"))
def test_a_layer_repeats_all_but_its_last_sum(monkeypatch, recompute, layout):
    shapes = [llama("llama", layers, 64, 4, 2, 176, vocab=500, context=128) for layers in (2, 4)]
    job = Job(1, 32, recompute=recompute, layout=layout)
    few, many = (counted(monkeypatch, shape, job) for shape in shapes)
    least, most = ({t.collective: t.calls for t in step_traffic(shape, job) if t.size < 4 * 32 * 500}
                   for shape in shapes)
    seen = {kind: (many[kind] - few[kind]) / STEPS for kind in many if many[kind] > few[kind]}
    assert seen == {kind: most[kind] - least[kind] for kind in most}
