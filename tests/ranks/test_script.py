"""A notebook's function as a program for torchrun."""

import subprocess
import sys
from math import sqrt

import pytest
import torch
import torch.distributed as dist

from gpucourse import ranks
from gpucourse.errors import BadInput

SCALE = 3
TABLE = {"a": [1, 2.5], "b": None}
LOCK = object()


def scaled(x: torch.Tensor, by=SCALE):
    return x * by


def countdown(n):
    return 0 if n == 0 else countdown(n - 1)


class Pair:
    def __init__(self, value):
        self.value = scaled(value)


def train(steps, label="x"):
    LOCK = len(label)  # a local name: the global of that name is not needed
    x = torch.full((2,), float(dist.get_rank() + 1))
    for _ in range(steps):
        dist.all_reduce(x)
    return Pair(x).value.tolist(), sqrt(4), TABLE["a"], countdown(LOCK), label


def test_the_script_gives_what_the_notebook_gives(tmp_path):
    made = ranks.script(train, 2, args=(2, "it's"), path=tmp_path / "train.py")
    assert made.torchrun == f"torchrun --standalone --nproc-per-node 2 {made.path}"
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", *made.torchrun.split()[1:]],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    wanted = ranks.run(train, 2, 2, "it's")
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {wanted[rank]}" for rank in range(2)]


def test_a_function_inside_another_brings_what_it_closes_over(tmp_path):
    factor = 7

    def inner():
        return factor * SCALE

    text = ranks.script(inner, 1, path=tmp_path / "inner.py").path.read_text()
    names = {"__name__": "not main"}
    exec(compile(text, "inner.py", "exec"), names)
    assert names["inner"]() == 21


def test_the_lines_for_several_nodes():
    from gpucourse.ranks.scripts import srun, torchrun

    assert torchrun("f.py", 4, 2) == ("torchrun --nnodes 2 --node-rank $NODE --nproc-per-node 4 "
                                      "--master-addr $HOST --master-port 29500 f.py")
    assert srun("f.py", 4, 2) == (
        "srun --nodes 2 --ntasks-per-node 1 bash -c 'torchrun --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 4 "
        "--master-addr $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) --master-port 29500 f.py'")


def test_the_page_on_clusters_has_these_lines(tmp_path, monkeypatch):
    from gpucourse.settings import ROOT

    monkeypatch.chdir(tmp_path)
    made = ranks.script(countdown, 16, nodes=2, args=(1,), path="sizes.py")
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").splitlines()
    assert made.torchrun in page and made.srun in page


def test_a_script_may_be_written_again_and_nothing_else_overwritten(tmp_path):
    ranks.script(countdown, 1, args=(1,), path=tmp_path / "a.py")
    ranks.script(countdown, 1, args=(2,), path=tmp_path / "a.py")
    assert "countdown(2)" in (tmp_path / "a.py").read_text()
    (tmp_path / "mine.py").write_text("print('mine')")
    with pytest.raises(BadInput, match="mine.py is not a script that was written here"):
        ranks.script(countdown, 1, path=tmp_path / "mine.py")
    assert (tmp_path / "mine.py").read_text() == "print('mine')"


def uses_an_object():
    return LOCK


@pytest.mark.parametrize(("fn", "options", "says"), [
    (None, {}, "was given NoneType, not a function"),
    (len, {}, "was given builtin_function_or_method, not a function"),
    (uses_an_object, {}, "LOCK, which the function uses, is a object"),
    (countdown, dict(args=(torch.ones(1),)), "an argument is a Tensor"),
    (countdown, dict(n=3, nodes=2), "3 ranks on 2 nodes is not the same number on each"),
    (countdown, dict(n=0), "ranks is 0"),
    (countdown, dict(nodes=0), "nodes is 0"),
])
def test_bad_input_is_one_line_and_writes_nothing(fn, options, says, tmp_path):
    with pytest.raises(BadInput) as caught:
        ranks.script(fn, **{"n": 2, "path": tmp_path / "x.py", **options})
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "x.py").exists()
