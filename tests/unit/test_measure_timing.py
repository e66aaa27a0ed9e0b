"""Timing, ratios, the machine's lock, ceilings."""

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from gpucourse.errors import BadInput
from gpucourse.evidence import compare
from gpucourse.measure import alternate, ceilings, quiet, timed

HANGS = 600  # seconds
LOCK = sys.modules["gpucourse.measure.lock"].__file__
HOLD = """
import runpy, sys, time
quiet = runpy.run_path(sys.argv[3])["quiet"]  # the file by itself: importing the room takes seconds
with quiet(folder=sys.argv[1]) as note:
    print("held", note, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holder(folder, seconds):
    """A process that has taken the lock in `folder`."""
    command = [sys.executable, "-c", HOLD, str(folder), str(seconds), LOCK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held \n"
    return process


def test_keeps_the_first_call_apart_and_takes_the_median():
    pauses = iter([0.2, 0.0, 0.01, 0.01, 0.01, 0.15, 0.01])

    def work():
        time.sleep(next(pauses))

    timing = timed(work, repeats=5, warmup=2)
    assert timing.first >= 0.2
    assert timing.runs == 5
    assert 0.01 <= timing.low <= timing.seconds <= timing.high < 0.15
    assert timing.device.startswith("cpu")
    figure = timing.readings().figures[0]
    assert (figure.name, figure.unit, figure.kind) == ("work", "ms", "measured")
    assert figure.value == timing.seconds * 1e3


def test_passes_arguments_on():
    got = []
    timed(lambda *args: got.append(args), torch.zeros(1), 2, repeats=3, warmup=1)
    assert len(got) == 4 and got[0][1] == 2


def test_alternates_and_gives_the_ratio():
    order = []

    def slow():
        order.append("slow")
        time.sleep(0.04)

    def fast():
        order.append("fast")
        time.sleep(0.01)

    ratio = alternate(slow, fast, rounds=6)
    assert order == ["slow", "fast"] + ["slow", "fast", "fast", "slow"] * 3
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value > 1.5  # 4 by design; a busy machine lengthens both
    assert "slow takes" in str(ratio)
    assert ratio.readings().figures[0].unit == "×"


@pytest.mark.parametrize("repeats", [0, -1, 2.5, True])
def test_refuses_counts_that_are_none(repeats):
    with pytest.raises(BadInput, match="repeats is .* at least 1"):
        timed(time.time, repeats=repeats)
    with pytest.raises(BadInput, match="rounds is"):
        alternate(time.time, time.time, rounds=repeats)


def test_alternate_refuses_what_is_no_function():
    with pytest.raises(BadInput, match="two functions"):
        alternate(3, time.time)


def test_the_lock_is_reentrant_and_kept_from_others(tmp_path):
    with quiet(folder=tmp_path) as outer, quiet(folder=tmp_path) as inner:
        assert (outer, inner) == ("", "")
    process = holder(tmp_path, 30)
    try:
        with quiet(patience=0.2, folder=tmp_path) as note:
            assert f"process {process.pid}" in note
    finally:
        process.kill()
        process.wait()


def test_the_lock_of_a_holder_that_dies_is_free(tmp_path):
    process = holder(tmp_path, 600)
    waited = []

    def wait():
        with quiet(patience=60, folder=tmp_path) as note:
            waited.append(note)

    thread = threading.Thread(target=wait)
    thread.start()
    process.send_signal(signal.SIGKILL)
    process.wait()
    thread.join(60)
    assert waited == [""]


def test_a_process_started_by_the_holder_is_inside(tmp_path):
    with quiet(folder=tmp_path):
        child = holder(tmp_path, 0)  # would wait two minutes
        child.wait(60)


def _hold_for_ever(folder, ready):
    ready.set()
    time.sleep(600)


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    with quiet(folder=tmp_path):
        child = context.Process(target=_hold_for_ever, args=(tmp_path, ready), daemon=True)
        child.start()
        ready.wait(60)
    try:
        other = holder(tmp_path, 0)
        other.wait(60)
    finally:
        child.kill()
        child.join()


def test_an_unwritable_folder_is_said(tmp_path):
    with quiet(folder=tmp_path / "absent") as note:
        assert note.startswith("timed without the machine's lock") and "absent" in note
    assert not (tmp_path / "absent").exists()


def test_ceilings_are_measured_and_named():
    found = ceilings()
    assert set(found.flops) >= {"fp64", "fp32", "bf16", "fp16"}
    assert found.bandwidth.keys() >= {"copy, small", "copy, large"}
    assert all(rate > 0 for rate in (*found.flops.values(), *found.bandwidth.values()))
    assert {figure.kind for figure in found.readings().figures} == {"measured"}
    assert "fp32 product" in str(compare(found)) and "<table>" in found._repr_html_()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86 CPU with oneDNN")
def test_an_emulated_dtype_gets_a_small_size_and_a_reason():
    # One thread: two wait for each other on a busy machine, and fp32 would look slow too.
    code = ("from gpucourse.measure import ceilings, device\n"
            "print(device().bf16)\n"
            "for row in ceilings().rows: print(row.name, row.on, row.note, sep='|')")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=True,
                          env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}).stdout
    rows = {name: (int(on.split()[-1]), note) for name, on, note in
            (line.split("|") for line in said.splitlines() if "product" in line)}
    assert said.startswith("False")
    for size, note in (rows["bf16 product"], rows["fp16 product"]):
        assert "slower than fp32" in note
        assert size < rows["fp32 product"][0]
