"""`watch` around a loop: what it reads, from which thread, and what is left when the loop ends."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque

import pytest
import torch

from gpucourse import watch
from gpucourse.catalog import GiB, MiB
from gpucourse.errors import BadInput, BudgetExceeded
from gpucourse.measure import budget, sampler


def training(width=32, depth=2):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(8, width)

    def step():
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


class Counting:
    """A sampler that says who asked: the total is a ramp of 1 MiB a look."""

    device, memory_is, peak_is = "cpu (test)", "counted", "peak counted"

    def __init__(self):
        self.phases, self.parts = deque(), (0, 0, 0)
        self.ticked, self.looked = set(), set()
        self.looks = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.left = exception

    def tick(self):
        self.ticked.add(threading.get_ident())
        self.parts = (MiB, MiB, MiB)

    def total(self):
        self.looked.add(threading.get_ident())
        self.looks += 1
        return self.looks * MiB

    def peak(self):
        return 0

    def lines(self):
        return {}


def test_the_line_and_the_figures(capsys):
    with watch("training", sampler=Counting()) as w:
        for _ in range(4):
            w.step(8)
            time.sleep(0.03)
    line = capsys.readouterr().out.strip()
    peak, throughput = w.readings().figures
    assert line.startswith(f"training: peak {peak.value * 1024:.2f} MiB (counted), ")
    assert "samples/s over 4 steps, measured on cpu (test)" in line
    assert (peak.name, peak.unit, peak.kind, peak.device) == ("peak counted", "GiB", "measured", "cpu (test)")
    assert (throughput.name, throughput.unit) == ("throughput", "samples/s")
    assert 0 < throughput.value < 8 / 0.03


def test_only_the_loop_ticks_and_the_thread_only_looks():
    counting = Counting()
    with watch("training", sampler=counting) as w:
        w.step(1)
        deadline = time.monotonic() + 60
        while not counting.looked and time.monotonic() < deadline:
            time.sleep(0.05)
    assert counting.ticked == {threading.get_ident()}
    assert len(counting.looked) == 2


def test_ten_thousand_steps_never_touch_a_gradient_from_the_thread():
    """In a process of its own: a heap that is corrupted ends it."""
    code = """
import threading, torch
from gpucourse import watch
readers = set()
class Watched(torch.nn.Parameter):
    @property
    def grad(self):
        readers.add(threading.get_ident())
        return torch.Tensor.grad.__get__(self)
    @grad.setter
    def grad(self, value):
        torch.Tensor.grad.__set__(self, value)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
model.weight = Watched(torch.randn(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
data = torch.randn(4, 8)
with watch("training", live=True) as w:
    for _ in range(10_000):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        w.step(4)
assert readers == {threading.get_ident()}, readers
"""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "over 10,000 steps" in ended.stdout


def test_finds_weights_gradients_and_state_by_itself():
    model, _, step = training()
    weights = sum(p.nbytes for p in model.parameters())
    with sampler() as found:
        found.tick()
        assert found.parts == (0, 0, 0)  # nothing has run yet
        model(torch.zeros(1, 32))
        assert found.parts == (weights, 0, 0)
        step()
        found.tick()
        assert found.parts == (weights, 2 * weights + 4 * 4, weights)  # although the loop has dropped its gradients


def test_follows_an_optimizer_that_changes():
    model, optimizer, step = training()
    with sampler() as found:
        step()
        before = found.parts
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1000))]})
        deadline = time.monotonic() + 60
        while found.parts == before and time.monotonic() < deadline:
            step()
    assert found.parts[0] == before[0] + 4000


def test_walks_at_the_tick_where_there_is_no_optimizer():
    model, _, _ = training()
    with sampler(model) as found:
        model(torch.ones(1, 32)).sum().backward()
        found.tick()
    assert found.parts == (found.parts[0], 0, found.parts[0])


def test_a_model_given_adds_what_no_optimizer_trains():
    frozen = torch.nn.BatchNorm1d(10).requires_grad_(False)
    _, _, step = training()
    with sampler(frozen) as found:
        own = sum(t.nbytes for t in (*frozen.parameters(), *frozen.buffers()))
        found.tick()
        assert found.parts[0] == own
        step()
        assert found.parts[0] == own + 2 * 4 * (32 * 32 + 32)


def test_phases_come_in_order_and_all_hooks_go():
    hooks = torch.nn.modules.module
    model, _, step = training()
    with sampler() as found:
        for _ in range(3):
            step()
    assert [phase for _, phase in found.phases] == ["forward", "backward", "step", ""] * 3
    step()
    assert len(found.phases) == 12
    assert not hooks._global_forward_pre_hooks and not model._forward_hooks and not model._forward_pre_hooks
    optimizers = sys.modules["torch.optim.optimizer"]
    assert not optimizers._global_optimizer_pre_hooks and not optimizers._global_optimizer_post_hooks


def test_the_total_counts_tensors_from_before_and_what_grows():
    before = torch.ones(64 * MiB // 4)
    with sampler() as found:
        assert found.total() >= before.nbytes
        start = found.total()
        grown = torch.ones(64 * MiB // 4)
        assert found.total() - start >= grown.nbytes * 0.9


def test_a_step_costs_little():
    model, optimizer, step = training(depth=74)
    with watch("training") as w:
        step()
        costs = []
        for _ in range(200):
            begin = time.thread_time()
            w.step(1)
            costs.append(time.thread_time() - begin)
        begin = time.thread_time()
        step()
        one_step = time.thread_time() - begin
    assert sorted(costs)[100] < one_step / 4  # 148 parameter tensors; the step itself is as small as it can be


@pytest.mark.parametrize("samples", [0, -1, 2.5, None, True, "8"])
def test_a_step_needs_a_number_of_samples(samples):
    with watch("training", sampler=Counting()) as w, pytest.raises(BadInput, match="samples of this step"):
        w.step(samples)


def test_bad_arguments():
    with pytest.raises(BadInput, match="title"):
        watch("  ")
    for value in (0, -1, "2 GiB", True, float("nan")):
        with pytest.raises(BadInput, match="budget"):
            watch("training", budget=value)
    with pytest.raises(BadInput, match="torch.nn.Module"):
        watch("training", model="gpt2")


def test_fewer_than_two_steps_give_no_throughput(capsys):
    with watch("nothing", sampler=Counting()) as none:
        pass
    with watch("one", sampler=Counting()) as one:
        one.step(1)
    said = capsys.readouterr().out
    assert "0 steps: too few for a throughput" in said and "1 step: too few for a throughput" in said
    assert [figure.name for figure in (*none.readings().figures, *one.readings().figures)] == ["peak counted"] * 2


def test_readings_come_when_the_loop_has_ended():
    with watch("training", sampler=Counting()) as w, pytest.raises(BadInput, match="still being watched"):
        w.readings()


def test_nested_and_in_a_row_leave_no_thread(capsys):
    threads = threading.active_count()
    _, _, step = training()
    for _ in range(2):
        with watch("outer") as outer, watch("inner", live=True) as inner:
            for _ in range(3):
                step()
                outer.step(8)
                inner.step(8)
        assert threading.active_count() == threads
    assert capsys.readouterr().out.count("over 3 steps") == 4


def failing(w, step, alive, error):
    held = torch.zeros(4 * MiB // 4)
    alive.append(weakref.ref(held))
    step()
    w.step(8)
    step()
    w.step(8)
    raise error


@pytest.mark.parametrize("error, said", [(torch.OutOfMemoryError("no memory"), "stopped by OutOfMemoryError"),
                                         (ValueError("shapes"), "stopped by ValueError")])
def test_an_exception_passes_on_and_its_tensors_die(capsys, error, said):
    _, _, step = training()
    alive, threads = [], threading.active_count()
    with pytest.raises(type(error)) as caught, watch("training") as w:
        failing(w, step, alive, error)
    assert caught.value is error
    assert alive[0]() is None
    assert threading.active_count() == threads
    assert f"training: {said}; its tensors are released; peak" in capsys.readouterr().out
    assert len(w.readings().figures) == 2


def test_a_budget_inside_a_watched_block(capsys):
    model, optimizer, step = training(width=256)
    step()
    states = sum(t.nbytes for t in (*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())))
    most = states + 100_000  # the gradients take three times as much
    with pytest.raises(BudgetExceeded) as refused, watch("training", budget=most) as w, \
            budget(most, model, optimizer) as limit:
        for _ in range(2):
            step()
            w.step(8)
    assert "stopped by BudgetExceeded" in capsys.readouterr().out
    optimizer.zero_grad()
    gc.collect()
    assert limit.live == states
    assert refused.value is not None


def test_an_interrupt_inside_a_watched_block(capsys, interruptible):
    threads = threading.active_count()
    alive = []

    def loop(w):
        held = torch.zeros(1000)
        alive.append(weakref.ref(held))
        for _ in range(1000):
            w.step(1)
            if len(w._rates) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt), watch("training", sampler=sampler()) as w:
        loop(w)
    assert alive[0]() is None
    assert "training: interrupted; its tensors are released" in capsys.readouterr().out
    assert threading.active_count() == threads


def test_a_run_records_the_figures_of_a_loop_that_ended_well(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCOURSE_RUN", str(tmp_path))
    monkeypatch.setenv("GPUCOURSE_LESSON", "99_test")
    with pytest.raises(ValueError), watch("broken", sampler=Counting()) as w:
        raise ValueError
    with watch("training", sampler=Counting()) as w:
        w.step(1)
        w.step(1)
    lines = [json.loads(line) for line in (tmp_path / "evidence.99_test.jsonl").read_text().splitlines()]
    assert [(line["name"], line["source"]) for line in lines] == [("peak counted", "watch: training"),
                                                                  ("throughput", "watch: training")]


def test_the_peak_of_the_device_itself_counts():
    counting = Counting()
    counting.peak = lambda: 3 * GiB
    with watch("training", sampler=counting) as w:
        pass
    assert w.readings().figures[0].value == 3


def test_importing_watch_loads_no_torch():
    code = "import sys; from gpucourse import watch; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0
