"""What a launch that goes well gives: results, tensors, output, the surroundings of the kernel."""

import os
import subprocess
import sys

import pytest
import torch

from gpucourse import ranks
from gpucourse.ranks import launching


def test_results_come_by_rank_and_ranks_can_talk():
    def total(factor, *, plus):
        import torch
        import torch.distributed as dist

        x = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(x)
        return dist.get_rank(), factor * x.item() + plus, torch.get_num_threads(), str(ranks.device())

    assert ranks.run(total, 3, 10, plus=0.5) == [(rank, 60.5, 1, "cpu") for rank in range(3)]


def test_output_comes_while_the_ranks_run(capsys):
    """A rank goes on only when the kernel has made a file, which it does once it has seen the line before."""
    def talk(path):
        import os
        import time

        print("first")
        while not os.path.exists(path):
            time.sleep(0.01)
        print("second")

    class Seen:
        def write(self, text):
            if "[rank 0] first" in text:
                open(path, "w").close()

        def flush(self):
            pass

    path = f"/tmp/gpucourse-test-{os.getpid()}"
    before, sys.stdout = sys.stdout, Seen()
    try:
        ranks.run(talk, 1, path)
    finally:
        sys.stdout = before
        os.remove(path)


def test_a_progress_bar_leaves_its_last_state(capsys):
    def train():
        for step in range(5):
            print(f"\rstep {step}", end="")
        print()

    ranks.run(train, 1)
    assert capsys.readouterr().out == "[rank 0] step 4\n"


def test_tensors_of_every_kind_come_back_as_they_were():
    sent = {
        "int": torch.arange(6).reshape(2, 3), "bf16": torch.randn(4).bfloat16(), "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "transposed": torch.arange(6.0).reshape(2, 3).T,
        "complex": torch.tensor([1 + 2j]).conj(), "fp8": torch.ones(3).to(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.ones(2)), "sparse": torch.eye(3).to_sparse(),
        "leaf": torch.ones(2, requires_grad=True),
    }
    (got,) = ranks.run(lambda x: x, 1, sent)
    for name, tensor in sent.items():
        assert type(got[name]) is type(tensor) and got[name].dtype == tensor.dtype, name
        assert got[name].requires_grad == tensor.requires_grad and got[name].shape == tensor.shape, name
        assert torch.equal(got[name].to_dense().double() if name != "complex" else got[name],
                           tensor.to_dense().double() if name != "complex" else tensor), name


def test_a_result_with_a_history_arrives_without_it():
    def train():
        import torch

        weight = torch.ones(3, requires_grad=True)
        return (weight * 2).sum(), weight

    (loss, weight), = ranks.run(train, 1)
    assert loss.item() == 6 and not loss.requires_grad and weight.requires_grad


def test_large_tensors_come_back_faster_than_pickled_ones():
    import time

    import cloudpickle

    def tensor(size):
        import torch

        return torch.ones(size)

    def pickled(size):
        import cloudpickle
        import torch

        return cloudpickle.dumps(torch.ones(size))

    def seconds(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    size = 64 * 2**20 // 4
    ours, ordinary = zip(*((seconds(lambda: ranks.run(tensor, 2, size)),
                            seconds(lambda: [*map(cloudpickle.loads, ranks.run(pickled, 2, size))]))
                           for _ in range(3)), strict=True)
    assert sorted(ours)[1] < sorted(ordinary)[1]


def test_ranks_have_the_kernel_s_variables_folder_and_modules(monkeypatch, tmp_path):
    (tmp_path / "beside_the_notebook.py").write_text("ANSWER = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SET_IN_A_CELL", "yes")

    def look():
        import os

        import beside_the_notebook

        return os.getcwd(), os.environ.get("SET_IN_A_CELL"), os.environ["OF_THE_RANKS"], beside_the_notebook.ANSWER

    assert ranks.run(look, 1, env={"OF_THE_RANKS": "1"}) == [(str(tmp_path), "yes", "1", 42)]
    monkeypatch.delenv("SET_IN_A_CELL")
    assert ranks.run(look, 1, env={"OF_THE_RANKS": "2"})[0][1] is None


def test_ranks_draw_different_random_numbers_of_numpy_and_python_and_the_same_of_torch():
    def draw():
        import random

        import numpy
        import torch

        return random.random(), numpy.random.rand(), torch.rand(1).item()

    one, other = ranks.run(draw, 2)
    assert one[0] != other[0] and one[1] != other[1] and one[2] == other[2]


def test_a_launch_without_a_fork_server_is_the_same(monkeypatch, capsys):
    monkeypatch.setattr(launching, "FORKS", False)

    def train():
        import torch
        import torch.distributed as dist

        x = torch.ones(2)
        dist.all_reduce(x)
        print("reduced")
        if dist.get_rank() == 1:
            raise ValueError("boom")
        return x

    with pytest.raises(ranks.RankError) as caught:
        ranks.run(train, 2)
    assert caught.value.outcomes[0].value.tolist() == [2, 2]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] reduced", "[rank 1] reduced"]
    first, where, other = str(caught.value).splitlines()
    assert first == 'rank 1 raised ValueError: boom; it last printed "reduced"' and 'raise ValueError("boom")' in where
    assert other == "rank 0 had returned"


def test_the_first_launch_s_loading_of_torch_is_not_counted_as_the_function_s_time():
    code = "from gpucourse import ranks; assert ranks.run(int, 1, timeout=0.7) == [0]"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0


@pytest.mark.parametrize("n", [1, 8])
def test_any_number_of_ranks(n):
    def rank():
        import torch.distributed as dist

        dist.barrier()
        return dist.get_rank(), dist.get_world_size()

    assert ranks.run(rank, n) == [(r, n) for r in range(n)]


def test_spans_of_all_ranks_are_on_one_clock():
    def work():
        import time

        import torch.distributed as dist

        rank = dist.get_rank()
        for turn in range(4):
            if turn % 2 == rank:
                with ranks.span(f"turn {turn}"):
                    time.sleep(0.01)
            dist.barrier()

    timeline = ranks.run(work, 2).timeline
    in_time = sorted((span for rank in timeline for span in rank), key=lambda span: span.begin)
    assert [span.name for span in in_time] == [f"turn {turn}" for turn in range(4)]
    assert all(one.end <= other.begin for one, other in zip(in_time, in_time[1:], strict=False))
    assert all(span.end - span.begin >= 0.01 for span in in_time)
