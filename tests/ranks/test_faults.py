"""The fault table: whatever a rank does, the launch ends, says which rank and where, and leaves nothing behind."""

import re

import pytest

from gpucourse import ranks
from gpucourse.errors import BadInput
from gpucourse.ranks.report import Died, Raised, Returned, Waiting


def failure(fn, *args, **options) -> ranks.RankError:
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(fn, 2, *args, **options)
    return caught.value


def test_a_raise_on_one_rank_names_its_lines_and_who_waits_where():
    def train():
        import torch
        import torch.distributed as dist

        def backward():
            raise ValueError("loss is nan")

        if dist.get_rank() == 1:
            print("step 7")
            backward()
        dist.all_reduce(torch.ones(3))

    error = failure(train)
    first, outer, inner, other = str(error).splitlines()
    assert first == 'rank 1 raised ValueError: loss is nan; it last printed "step 7"'
    assert re.fullmatch(r"  test_faults\.py, line \d+, in train  →  backward\(\)", outer)
    assert re.fullmatch(r'  test_faults\.py, line \d+, in backward  →  raise ValueError\("loss is nan"\)', inner)
    assert re.fullmatch(r"rank 0 waits in all_reduce at test_faults\.py, line \d+, in train  →  dist.all.*", other)
    assert isinstance(error.outcomes[1], Raised) and isinstance(error.outcomes[0], Waiting)


def test_a_raise_in_a_library_names_the_library_s_line_too():
    def train():
        import torch

        torch.ones(2, 3) @ torch.ones(2, 3)
        torch.nn.functional.cross_entropy(torch.ones(2, 3), "labels")

    message = str(failure(train))
    assert "mat1 and mat2 shapes" in message and "→  torch.ones(2, 3) @ torch.ones(2, 3)" in message

    def inside():
        import torch

        torch.nn.Linear(2, 2)("text")

    lines = str(failure(inside)).splitlines()
    assert lines[1].endswith('→  torch.nn.Linear(2, 2)("text")') and lines[2].startswith("  linear.py, line ")


def test_a_raise_on_all_ranks_tells_the_first_in_full_and_the_others_shortly():
    def train():
        import time

        import torch.distributed as dist

        dist.barrier()
        time.sleep(0 if dist.get_rank() == 1 else 0.2)
        raise RuntimeError(f"from {dist.get_rank()}\nand a second line")

    lines = str(failure(train)).splitlines()
    assert lines[:2] == ["rank 1 raised RuntimeError: from 1", "and a second line"]
    assert "rank 0 raised RuntimeError: from 0 …" in lines


def test_a_collective_that_one_rank_never_enters():
    def train():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.broadcast(torch.ones(1), src=1)
        return "done"

    error = failure(train, timeout=2)
    head, waiting, done = str(error).splitlines()
    assert head == "not all ranks had finished after 2 s"
    assert re.fullmatch(r"rank 0 waits in broadcast at test_faults\.py, line \d+, in train  →  dist\.br.*", waiting)
    assert done == "rank 1 had returned"
    assert isinstance(error.outcomes[1], Returned)


def test_ranks_that_wait_in_different_collectives_are_told_apart():
    def train():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), 1)
        else:
            dist.barrier()

    message = str(failure(train, timeout=2))
    assert "rank 0 waits in recv at" in message and "rank 1 waits in barrier at" in message


def test_a_rank_that_computes_for_ever_is_found_by_its_line():
    def train():
        while True:
            pass

    message = str(failure(train, timeout=1))
    assert re.search(r"rank 1 is still running at test_faults\.py, line \d+, in train", message)


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_leaves_says_its_exit_code(code):
    def train():
        import os

        import torch.distributed as dist

        if dist.get_rank() == 1:
            print("last words", flush=True)
            os._exit(code)
        dist.barrier()

    error = failure(train)
    first = str(error).splitlines()[0]
    assert first == f'rank 1 left with exit code {code} before it returned; it last printed "last words"'
    assert error.outcomes[1] == Died(code)


def test_sys_exit_is_told_with_its_line():
    def train():
        import sys

        sys.exit(4)

    first, where, *_ = str(failure(train)).splitlines()
    assert re.fullmatch(r"rank [01] raised SystemExit: 4", first) and where.endswith("in train  →  sys.exit(4)")


def test_a_killed_rank_comes_before_those_that_lost_their_connection_to_it():
    def train():
        import os
        import signal

        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    first = str(failure(train)).splitlines()[0]
    assert first == "rank 1 was ended by signal 9 (killed); the system does this when memory runs out"


def test_a_segmentation_fault_is_told_with_its_line():
    def train():
        import ctypes

        ctypes.string_at(0)

    lines = str(failure(train)).splitlines()
    assert lines[0] == "rank 0 was ended by signal 11 (segmentation fault)"
    assert any(line.endswith("in train  →  ctypes.string_at(0)") for line in lines)


def test_running_out_of_memory_in_a_rank_is_an_exception_like_others():
    def by_the_system():
        import resource

        import torch

        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        torch.ones(2**30)

    assert "DefaultCPUAllocator: can't allocate memory" in str(failure(by_the_system))

    def by_a_budget():
        import torch

        from gpucourse import measure

        with measure.budget(1000):
            torch.ones(1000)

    assert "raised BudgetExceeded: " in str(failure(by_a_budget))


def test_an_endless_print_is_capped_and_counted(capsys):
    def train():
        while True:
            print("again")

    failure(train, timeout=2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        assert lines.count(f"[rank {rank}] again") == 1000
        (more,) = (line for line in lines if line.startswith(f"[rank {rank}] … "))
        assert int(re.search(r"([\d,]+) more lines", more)[1].replace(",", "")) > 1000
    assert len(lines) == 2002


def test_an_endless_line_does_not_fill_the_memory(capsys):
    def train():
        while True:
            print("x" * 1000, end="")

    failure(train, timeout=1)
    out = capsys.readouterr().out
    assert len(out) < 10_000 and "[rank 0] xxx" in out


def test_a_print_without_newline_is_shown(capfd):
    def train():
        import os
        import sys

        import torch.distributed as dist

        print(f"open {dist.get_rank()}", end="", flush=True)
        print(" to stderr", end="", file=sys.stderr, flush=True)
        os.system("echo ' from a child'")
        print("the end", end="")

    ranks.run(train, 2)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["[rank 0] open 0 to stderr from a child", "[rank 0] the end",
                             "[rank 1] open 1 to stderr from a child", "[rank 1] the end"]


def test_a_result_that_cannot_be_sent_back():
    def train():
        return (number for number in range(3))

    first = str(failure(train)).splitlines()[0]
    assert re.match(r"rank [01]: its result cannot be sent back \(TypeError: cannot pickle 'generator' object\); "
                    "return tensors", first)


def test_a_result_that_cannot_be_read_here():
    def train():
        class Odd:
            def __reduce__(self):
                return int, ("no number",)

        return Odd()

    assert "its result cannot be read here (ValueError: invalid literal" in str(failure(train))


def test_an_argument_that_cannot_be_sent():
    import threading

    def train(lock):
        return None

    with pytest.raises(BadInput, match=r"train, or what it uses, cannot be sent .*cannot pickle '_thread.lock'"):
        ranks.run(train, 2, threading.Lock())


@pytest.mark.parametrize("given", [None, 3.5, [1]])
def test_a_result_in_place_of_a_function(given):
    with pytest.raises(BadInput, match=f"was given {type(given).__name__}, not a function: pass the function, not its"):
        ranks.run(given, 2)


@pytest.mark.parametrize(("options", "says"), [
    (dict(n=0), "ranks is 0"), (dict(n=2.0), "ranks is 2.0"), (dict(n=65), "ranks is 65; 64 processes are the most"),
    (dict(timeout=0), "timeout is 0"), (dict(timeout=float("nan")), "timeout is nan"),
    (dict(link="ethernet"), "link 'ethernet' is not known; did you mean ethernet-10"), (dict(link=3), "link is 3"),
    (dict(link="0:1"), "bandwidth must be above 0"), (dict(env={"A": 1}), "env has 'A': 1"),
])
def test_bad_input_is_one_line(options, says):
    with pytest.raises(BadInput) as caught:
        ranks.run(print, **{"n": 2, **options})
    assert says in str(caught.value) and "\n" not in str(caught.value)
