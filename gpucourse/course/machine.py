"""What a run has to say about the machine that it ran on. Nothing here names the host or its folders."""

import platform
from importlib import metadata

VERSIONS = ("gpucourse", "torch", "numpy", "jupyterlab", "ipykernel", "papermill")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONS}}


def devices() -> list[dict]:
    """Every device of this machine: its label, kind and capacity in bytes."""
    from gpucourse import measure

    return [{"label": d.label, "kind": d.kind, "capacity_bytes": d.capacity} for d in measure.devices()]
