"""Two nodes on one machine: network namespaces joined by a link that can be throttled."""

import os
import re
import shutil
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpucourse import ranks
from gpucourse.ranks.scripts import torchrun

NODES = 2
MBIT, BURST = 100, 64 * 1024
DEADLINE = 600  # seconds: only a hang takes longer


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture(scope="module")
def nodes():
    """Two namespaces with an interface `node` each, 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("needs root and iproute2 (ip, tc)")
    names = [f"course-{uuid.uuid4().hex[:6]}-{node}" for node in range(NODES)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "node", "netns", names[0], "type", "veth", "peer", "name", "node", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs network namespaces: {error.stderr.strip()}")
        for node, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", "node")
            ip("-n", name, "link", "set", "node", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def throttle(names: list[str], mbit: int) -> None:
    for name in names:
        subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", "node", "root", "tbf", "rate", f"{mbit}mbit",
                        "burst", str(BURST), "latency", "100ms"], check=True, capture_output=True, timeout=30)


def on_all(names: list[str], path) -> dict[int, str]:
    """What each rank prints, by rank: torchrun on every node, two ranks each."""
    def on_one(node: int) -> str:
        command = torchrun(path, 2, NODES, str(node), "10.77.0.1").split()[1:]
        inside = ["ip", "netns", "exec", names[node], sys.executable, "-m", "torch.distributed.run"]
        done = subprocess.run([*inside, *command], capture_output=True, text=True, timeout=DEADLINE,
                              env={**os.environ, "GLOO_SOCKET_IFNAME": "node", "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(NODES) as pool:
        printed = "".join(pool.map(on_one, range(NODES)))
    return {int(rank): text for rank, text in re.findall(r"^\[rank (\d+)\] (.*)$", printed, re.MULTILINE)}


def work(megabytes):
    """The sum of an all-reduce over integers, and the median seconds of five all-reduces."""
    import time

    import torch
    import torch.distributed as dist

    x = torch.arange(64, dtype=torch.float64) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    buffer, times = torch.ones(megabytes * 2**18), []
    for _ in range(5):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        times.append(time.perf_counter() - begin)
    return x.sum().item(), dist.get_world_size(), sorted(times)[2]


def test_two_nodes_give_what_one_gives_and_a_throttle_is_felt(nodes, tmp_path):
    megabytes = 2
    path = ranks.script(work, 2 * NODES, NODES, args=(megabytes,), path=tmp_path / "work.py").path
    free = on_all(nodes, path)
    throttle(nodes, MBIT)
    throttled = on_all(nodes, path)
    one_host = ranks.run(work, 2 * NODES, megabytes)

    def parts(text: str) -> tuple[float, int, float]:
        total, world_size, seconds = text.strip("()").split(", ")
        return float(total), int(world_size), float(seconds)

    assert sorted(free) == sorted(throttled) == list(range(2 * NODES))
    for rank, (total, world_size, _) in enumerate(one_host):
        assert parts(free[rank])[:2] == parts(throttled[rank])[:2] == (total, world_size)
    slow, fast = (max(parts(text)[2] for text in printed.values()) for printed in (throttled, free))
    least = (megabytes * 2**20 - BURST) / (MBIT * 1e6 / 8)  # a node cannot know the sum from fewer of the other's bytes
    print(f"all-reduce of {megabytes} MiB on 2 × 2 ranks: {1e3 * fast:.0f} ms, at {MBIT} Mbit/s {1e3 * slow:.0f} ms")
    assert slow > least and slow > 2 * fast
