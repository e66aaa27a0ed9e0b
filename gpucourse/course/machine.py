"""What a run has to say about the machine that it ran on. Nothing here names the host or its folders."""

import json
import platform
import subprocess
import sys
from importlib import metadata

VERSIONS = ("gpucourse", "torch", "numpy", "jupyterlab", "ipykernel", "papermill")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS}}


def devices() -> list[dict]:
    """Every device of this machine: label, kind, capacity in bytes, whether bf16 is native, and a note."""
    from gpucourse.measure.devices import devices as every

    return [{"label": d.label, "kind": d.kind, "capacity_bytes": d.capacity, "bf16": d.bf16, "note": d.note}
            for d in every()]


def devices_from_outside() -> list[dict]:
    """The same, asked of a process that ends at once: a CUDA context here would take memory from the lessons."""
    asked = subprocess.run([sys.executable, "-m", "gpucourse.course.machine"], capture_output=True, text=True)
    return json.loads(asked.stdout) if asked.returncode == 0 else []


if __name__ == "__main__":
    print(json.dumps(devices()))
