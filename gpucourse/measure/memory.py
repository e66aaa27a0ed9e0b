"""Where the memory of one training step went, measured: in a fresh process on a CPU, here on a GPU."""

import json
import subprocess
import sys

from gpucourse.errors import BadInput, CourseError
from gpucourse.evidence import Memory
from gpucourse.measure.devices import device
from gpucourse.settings import child_environment

# The allocator gives each large block back to the system at once, so that the high-water mark follows the tensors.
# One thread: no time is taken, kernels then make no buffer a thread, and processes side by side do not wait for cores.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
DEADLINE = 300.0  # seconds


def memory(build, *args, deadline: float = DEADLINE) -> Memory:
    """Bytes by category at each instant of the second step of a training.

    build: `build(*args)` returns a function that takes one step, such as `models.training`; or is one step itself.
    On a CPU both run in a fresh process, and the figures are the allocator's own events; `also` holds the process's
    high-water mark above its start. On a GPU they run here, and the figures are the caching allocator's.
    Raises CourseError when the step fails or passes the deadline (seconds).
    """
    if not callable(build):
        raise BadInput(f"measure.memory was given {type(build).__name__}; it takes a function that builds a step")
    here = device()
    if here.kind == "cuda":
        from gpucourse.measure.memory_cuda import observe

        return Memory(observe(build, args), "measured", here.label, "torch.cuda.max_memory_allocated")
    answer = in_fresh_process(build, args, deadline)
    also = {"process high-water": answer["high_water"]}
    return Memory(answer["at"], "measured", here.label, "allocator events, fresh process", also)


def in_fresh_process(build, args, deadline: float) -> dict:
    """What gpucourse.measure.fresh answers for (build, args)."""
    import cloudpickle

    command = [sys.executable, "-m", "gpucourse.measure.fresh"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=child_environment(**ENVIRONMENT))
    try:
        out, said = child.communicate(cloudpickle.dumps((build, args)), timeout=deadline)
    except subprocess.TimeoutExpired:
        raise CourseError(f"the measured step had not finished after {deadline:.0f} s; use a smaller model") from None
    finally:
        child.kill()
        child.wait()
    if not out:
        last = said.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise CourseError(f"the process that measures the step died: {last[0]}")
    answer = json.loads(out)
    if "error" in answer:
        raise CourseError(f"the measured step failed: {answer['error']}")
    return answer
