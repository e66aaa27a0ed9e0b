"""Events against a clock on the host that waits: on a large product the two agree, without waiting they do not."""

import time

import pytest
import torch

from gpucourse import measure
from gpucourse.measure.events import event_seconds

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs 1 GPU")]


def test_events_agree_with_a_clock_that_waits():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    waited = measure.timed(torch.matmul, a, a, repeats=20)
    assert 0.5 < event_seconds(lambda: a @ a) / waited.seconds < 2


def test_a_clock_that_does_not_wait_sees_the_launch():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    device = event_seconds(lambda: a @ a)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    a @ a
    launched = time.perf_counter() - begin
    torch.cuda.synchronize()
    assert launched < device / 2
