"""How long it takes to run a function that does nothing on two ranks, by launcher, in alternation.

    python benchmarks/ranks.py

Each launcher's first call is made in a fresh process, its later ones in the same process; the ranks get a gloo process
group. `spawn` is torch.multiprocessing's, with cloudpickle for the function. accelerate's launcher for a CPU is taken
where accelerate is installed; it is not one of the course's dependencies (`pip install accelerate`). It forks the
process that calls it, with all that is loaded there: nothing is quicker, and its ranks hang once that process has run
a product on several threads, and cannot use CUDA once it has.
"""

import importlib.util
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpucourse.evidence import columns_text

ROUNDS, LATER = 5, 5

TIMED = """
import time
{prepare}
for turn in range({calls}):
    begin = time.perf_counter()
    {call}
    print("seconds", time.perf_counter() - begin, flush=True)
"""
GROUP = """
def nothing():
    pass
def entry(rank, blob, store):
    import cloudpickle, torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + store)
    cloudpickle.loads(blob)()
    dist.barrier()
    dist.destroy_process_group()
"""
LAUNCHERS = {
    "ranks.run": ("from gpucourse import ranks\ndef nothing(): pass", "ranks.run(nothing, 2)"),
    "torch spawn": (GROUP + "import cloudpickle, tempfile, torch.multiprocessing as mp",
                    "mp.spawn(entry, (cloudpickle.dumps(nothing), tempfile.mktemp()), nprocs=2)"),
    "torchrun": ("import subprocess, sys",
                 "subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node',"
                 " '2', sys.argv[1]], check=True, capture_output=True)"),
}
if importlib.util.find_spec("accelerate"):
    LAUNCHERS["accelerate, forking"] = (
        "from accelerate import PartialState, debug_launcher\nimport torch\n"
        "def nothing():\n    PartialState()\n    torch.distributed.barrier()",  # the first makes the process group
        "debug_launcher(nothing, num_processes=2)")
# A rank that leaves at once would break the other's connection while that is still being made: hence the barrier.
SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def seconds(launcher: str, folder: Path) -> list[float]:
    """The first call and the later ones, in a process of their own."""
    prepare, call = LAUNCHERS[launcher]
    program = folder / f"{launcher.replace(' ', '_').replace('.', '_')}.py"
    body = TIMED.format(prepare="", call=call, calls=1 + LATER).replace("\n", "\n    ")
    program.write_text(f"{prepare}\nif __name__ == '__main__':{body}\n")
    done = subprocess.run([sys.executable, str(program), str(folder / "script.py")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{launcher}: {done.stderr}")
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds")]


def spread(times: list[float]) -> list[str]:
    return [f"{value:.2f}" for value in (statistics.median(times), min(times), max(times))]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        runs = {launcher: [] for launcher in LAUNCHERS}
        for _ in range(ROUNDS):
            for launcher in LAUNCHERS:
                runs[launcher].append(seconds(launcher, folder))
    rows = [["two ranks, a function that does nothing", "first call, s", "fastest", "slowest", "later calls, s",
             "fastest", "slowest", "rounds"]]
    for launcher, rounds in runs.items():
        first, later = [calls[0] for calls in rounds], [call for calls in rounds for call in calls[1:]]
        rows.append([launcher, *spread(first), *spread(later), str(ROUNDS)])
    print(columns_text(rows))
    if "accelerate, forking" not in LAUNCHERS:
        print("accelerate: not taken, it is not installed (pip install accelerate)")


if __name__ == "__main__":
    main()
