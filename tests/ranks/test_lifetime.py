"""Who ends when: interrupts, kernels that go away, many launches, several parents. Nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import jupyter_client
import psutil
import pytest
import torch
from leftovers import running, servers

from gpucourse import ranks
from gpucourse.errors import CourseError

HANG = """\
from gpucourse import ranks
def hang():
    import os, subprocess, time
    child = subprocess.Popen(["sleep", "1000"])
    print("pid", os.getpid(), "pid", child.pid), time.sleep(1000)
ranks.run(hang, 2)
"""
PATIENCE = 30


def wait_for(true, what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, f"{what} did not come about within {PATIENCE} s"
        time.sleep(0.05)


def hanging_kernel() -> tuple[jupyter_client.KernelManager, jupyter_client.BlockingKernelClient, list[psutil.Process]]:
    """A kernel whose cell runs two ranks that hang; the ranks, a child of each, and the server."""
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    client.execute(HANG)
    pids = set()
    while len(pids) < 4:
        message = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream":
            pids |= {int(pid) for pid in re.findall(r"pid (\d+)", message["content"]["text"])}
    kernel = psutil.Process(manager.provisioner.pid)
    return manager, client, [psutil.Process(pid) for pid in pids] + [server_of(kernel)]


def replied(client: jupyter_client.BlockingKernelClient) -> dict:
    """The next answer to a cell."""
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["msg_type"] == "execute_reply":
            return reply


def server_of(kernel: psutil.Process) -> psutil.Process:
    (server,) = (child for child in kernel.children() if "gpucourse.ranks.server" in " ".join(child.cmdline()))
    return server


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_when_the_kernel_goes_so_do_its_ranks_and_theirs(end):
    manager, client, family = hanging_kernel()
    try:
        if end == "restart":
            manager.restart_kernel(now=False)
        else:
            os.kill(manager.provisioner.pid, signal.SIGKILL)
        wait_for(lambda: all_gone(family), f"the end of the ranks after {end}")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_interrupt_of_the_kernel_ends_the_ranks_and_the_kernel_goes_on():
    manager, client, family = hanging_kernel()
    try:
        manager.interrupt_kernel()
        reply = replied(client)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        shown = "\n".join(reply["content"]["traceback"])
        assert re.search(r"rank 0 is still running at Cell In\[1\], line 5, in hang  →  .*time.sleep\(1000\)", shown)
        *family, server = family
        assert all_gone(family) and not all_gone([server])
        client.execute("print(ranks.run(lambda: 7, 2))")
        assert replied(client)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_an_error_in_a_cell_names_the_cell():
    import nbformat
    from nbclient import NotebookClient

    cells = ["from gpucourse import ranks", "def train():\n    x = 1\n    return x / 0", "ranks.run(train, 2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    (output,) = (output for output in notebook.cells[2].outputs if output.output_type == "error")
    assert output.ename == "RankError"
    assert "Cell In[2], line 3, in train  →  return x / 0" in output.evalue
    assert len(output.traceback) == 1 and "gpucourse" not in output.traceback[0]


def nothing(value=None):
    return value


def test_twenty_launches_leave_no_process_port_file_or_memory(loaded):
    def payload(tensor):
        import torch.distributed as dist

        dist.barrier()
        return tensor + dist.get_rank()

    mib = 4
    tensor = torch.ones(mib * 2**20 // 4)
    ranks.run(payload, 2, tensor)
    def held():
        processes = (psutil.Process(), *servers())
        ports = {connection.laddr for process in processes for connection in process.net_connections()}
        files = {name for name in os.listdir("/tmp") if name.startswith(("gpucourse", "pymp", "torch"))}
        return [process.num_fds() for process in processes], ports, files, sum(p.memory_info().rss for p in processes)

    descriptors, ports, files, memory = held()
    for _ in range(20):
        ranks.run(payload, 2, tensor)
    assert running() == []
    now_descriptors, now_ports, now_files, now_memory = held()
    assert now_descriptors == descriptors and now_ports <= ports and now_files <= files
    assert now_memory - memory < 20 * mib * 2**20  # less than one tensor a launch


PARENT = """
import sys
from gpucourse import ranks
def total(value):
    import torch, torch.distributed as dist
    x = torch.tensor([value]); dist.all_reduce(x); return x.item()
for turn in range(10):
    assert ranks.run(total, 2, int(sys.argv[1])) == [2 * int(sys.argv[1])] * 2
"""


def test_two_parents_at_once_do_not_disturb_each_other():
    parents = [subprocess.Popen([sys.executable, "-c", PARENT, str(value)]) for value in (3, 5)]
    assert [parent.wait(timeout=90) for parent in parents] == [0, 0]


def test_two_threads_of_one_parent_do_not_disturb_each_other():
    results = {}

    def launch(value):
        results[value] = ranks.run(lambda: value, 2)

    threads = [threading.Thread(target=launch, args=(value,)) for value in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {3: [3, 3], 5: [5, 5]}


def test_a_parent_that_has_multiplied_matrices_on_several_threads_still_launches():
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, before))
    try:
        torch.ones(512, 512) @ torch.ones(512, 512)
        torch.ones(512, 512, requires_grad=True).square().sum().backward()

        def multiply():
            import torch

            return (torch.ones(512, 512) @ torch.ones(512, 512))[0, 0].item()

        assert ranks.run(multiply, 2) == [512.0, 512.0]
    finally:
        torch.set_num_threads(before)


def test_an_interrupt_says_where_the_ranks_were(interruptible):
    def hang():
        import time

        time.sleep(1000)

    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        ranks.run(hang, 2)
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"rank 1 is still running at test_lifetime\.py, line \d+, in hang", notes)


def test_when_the_server_is_killed_the_launch_says_so_and_the_next_one_works():
    ranks.run(nothing, 2)

    def kill_the_server():
        import os
        import signal
        import time

        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

    family = servers()
    with pytest.raises(CourseError, match="the process that starts ranks ended"):
        ranks.run(kill_the_server, 1)
    wait_for(lambda: all_gone(family), "the end of the server")
    assert ranks.run(nothing, 2, 1) == [1, 1]


def test_a_forked_copy_of_the_kernel_has_a_server_of_its_own():
    ranks.run(nothing, 1)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, str(ranks.run(nothing, 1, 5)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read() == "[5]"
    os.waitpid(pid, 0)
    assert ranks.run(nothing, 1, 6) == [6]
