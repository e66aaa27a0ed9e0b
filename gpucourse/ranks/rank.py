"""What a rank does: take its job, join the process group, run the function, send back what came of it."""

import contextlib
import ctypes
import datetime
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback

import numpy
import torch
import torch.distributed as dist

from gpucourse.ranks import messages, pickling, telling, timeline
from gpucourse.ranks.report import Raised, Returned
from gpucourse.settings import adopt_environment

MARGIN = 60  # seconds that torch's own deadline comes after ours, which says more


def main(descriptors: list[int]) -> None:
    """Never returns. descriptors: the job's socket, the output pipe, the stacks pipe, the clocks, rank 0's store."""
    job_fd, output_fd, stacks_fd, clocks_fd, *store_fd = descriptors
    redirect(output_fd, stacks_fd)
    kernel = socket.socket(fileno=job_fd)
    try:
        job = pickling.unpack(messages.receive(kernel))
        call = messages.receive(kernel)
    except EOFError:
        os._exit(1)
    threading.Thread(target=leave_with, args=(kernel,), daemon=True).start()
    channel = telling.open_channel(kernel, job)
    outcome = perform(job, call, channel, clocks_fd, store_fd)
    flush()
    try:
        channel.send(answer(outcome))
        threading.Event().wait()  # the others may still need this rank's sockets: the kernel ends it
    finally:
        os._exit(0)


def redirect(output_fd: int, stacks_fd: int) -> None:
    """Output and errors go to one pipe, a line at a time; Python's stacks, on a signal or a crash, to another."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    faulthandler.enable(stacks_fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stacks_fd, all_threads=False)


def leave_with(kernel: socket.socket) -> None:
    """End this process when the kernel has ended, or is done with it."""
    with contextlib.suppress(OSError):
        kernel.recv(1)
    os._exit(1)


def perform(job: dict, call: list, channel: telling.Channel, clocks_fd: int, store_fd: list[int]) -> Returned | Raised:
    try:
        settle(job)
        join(job, clocks_fd, store_fd)
        channel.begin()
        function, args, kwargs = pickling.unpack(call)
        value = function(*args, **kwargs)
        return Returned(value, timeline.spans(since=job["started"]))
    except BaseException as error:
        return raised(error)


def settle(job: dict) -> None:
    """Be as a fresh process of the kernel's would be: its variables, folder and modules; its own random numbers."""
    adopt_environment(job["environment"])
    with contextlib.suppress(OSError):
        os.chdir(job["folder"])
    sys.path[:] = job["path"]
    sys.argv[:] = [""]
    random.seed()
    numpy.random.seed()
    torch.set_num_threads(1)


def join(job: dict, clocks_fd: int, store_fd: list[int]) -> None:
    rank, world_size = job["rank"], job["world_size"]
    patience = datetime.timedelta(seconds=job["timeout"] + MARGIN)
    store = dist.TCPStore("127.0.0.1", job["port"], world_size, is_master=rank == 0, timeout=patience,
                          master_listen_fd=store_fd[0] if store_fd else None)
    common = dict(store=store, rank=rank, world_size=world_size, timeout=patience)
    if job["link"] is not None:
        from gpucourse.ranks import paced
        from gpucourse.ranks.clocks import Clocks

        paced.register(job["link"], Clocks(clocks_fd, store))
        dist.init_process_group("paced", **common)
    elif gpu_count() >= world_size:
        torch.accelerator.set_device_index(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", rank), **common)
    else:
        dist.init_process_group("gloo", **common)


def gpu_count() -> int:
    if not torch.accelerator.is_available():
        return 0
    from gpucourse import measure  # costs a tenth of a second

    return measure.gpu_count()


def raised(error: BaseException) -> Raised:
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return Raised(type(error).__name__, message, tuple(frames[1:]), time.monotonic())


def answer(outcome: Returned | Raised) -> list:
    try:
        return pickling.pack(outcome)
    except Exception as error:
        return pickling.pack(Raised("", unsendable(error), (), time.monotonic()))


def unsendable(error: Exception) -> str:
    return (f"its result cannot be sent back ({type(error).__name__}: {error}); "
            "return tensors, numbers, text, or lists and dicts of them")


def flush() -> None:
    """Write out what Python and C have buffered: the process ends without the usual goodbyes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
