"""What lesson 10 rests on: DDP's buckets travel while backward runs, and that shows over a paced link."""

import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpucourse import ranks

LAYERS, BACKWARD = 8, 0.02  # seconds of a layer


class Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD)
        return gradient


class Layer(torch.nn.Linear):
    def forward(self, x):
        return Takes.apply(super().forward(x))


def steps(rounds: int):
    """On one rank: seconds of steps with one bucket and with many in turn, and the all-reduces of each."""
    models = {}
    for cap in (1000, 1):
        layers = [Layer(512, 512, bias=False) for _ in range(LAYERS)]  # 1 MiB each
        models[cap] = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=cap)
    x = torch.randn(4, 512)
    for model in models.values():
        for _ in range(2):
            model(x).sum().backward()
    seconds, calls = [], []
    for _ in range(rounds):
        pair = []
        for model in models.values():
            dist.barrier()
            begin = time.perf_counter()
            model(x).sum().backward()
            pair.append(time.perf_counter() - begin)
        seconds.append(pair)
    for model in models.values():
        with ranks.counting() as seen:
            model(x).sum().backward()
        calls.append((seen.count("all-reduce"), seen.size("all-reduce")))
    return seconds, calls


def test_one_bucket_takes_longer_than_many_over_a_paced_link(loaded):
    link = "0.06:500"  # 8 MiB take 140 ms, as backward nearly does
    seconds, calls = ranks.run(steps, 2, 5, link=link)[0]
    assert calls == [(1, LAYERS * 2**20), (LAYERS, LAYERS * 2**20)]
    assert statistics.median(one / many for one, many in seconds) >= 1.25
