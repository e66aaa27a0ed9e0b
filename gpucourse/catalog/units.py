"""Bytes and seconds as the course writes them: binary units for memory, decimal GB only for vendors' figures."""

KiB, MiB, GiB = 1024, 1024**2, 1024**3


def gib(size: float) -> float:
    """Bytes → GiB."""
    return size / GiB


def bytes_text(size: float) -> str:
    """A size in the largest binary unit that keeps it at or above 1: `512 B`, `1.50 MiB`, `29.0 GiB`."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if abs(size) >= unit:
            value = size / unit
            return f"{value:.{2 if abs(value) < 10 else 1}f} {name}"
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    """A duration with three figures: `850 ns`, `2.71 ms`, `1.20 s`."""
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if abs(seconds) >= unit:
            return f"{seconds / unit:.3g} {name}"
    return "0 s"
