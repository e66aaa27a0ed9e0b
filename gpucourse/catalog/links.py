"""Links between GPUs, from data/links.toml or written as GB/s:µs."""

import math
import tomllib
from dataclasses import dataclass
from functools import cache

from gpucourse.errors import BadInput, unknown
from gpucourse.settings import DATA


@dataclass(frozen=True)
class Link:
    """bandwidth: bytes/s that one GPU sends in one direction (β = 1/bandwidth). latency: seconds a message (α).

    domain: how many GPUs the link joins without a network; 0 means any number. rack: they may be in several nodes.
    """

    name: str
    bandwidth: float
    latency: float
    domain: int = 0
    title: str = ""
    rack: bool = False


def link(name: str) -> Link:
    """The link of that name, or one written as `GB/s:µs` such as `25:10`; BadInput otherwise."""
    if ":" in name:
        return _written(name)
    rows = _rows()
    if name not in rows:
        raise unknown("link", name, [*rows, "GB/s:µs, for instance 25:10"])
    row = rows[name]
    return Link(name, row["gb_s"] * 1e9, row["us"] * 1e-6, row["domain"], row["title"], row.get("rack", False))


def links() -> tuple[str, ...]:
    """Every known name, in the order of the file."""
    return tuple(_rows())


def _written(text: str) -> Link:
    try:
        gb_s, us = map(float, text.split(":"))
    except ValueError:
        raise BadInput(f"link {text!r} is not GB/s:µs; write for instance 25:10 for 25 GB/s and 10 µs") from None
    if not (math.isfinite(gb_s) and math.isfinite(us) and gb_s > 0 and us >= 0):
        raise BadInput(f"link {text!r}: the bandwidth must be above 0 GB/s and the latency at least 0 µs")
    return Link(text, gb_s * 1e9, us * 1e-6)


@cache
def _rows() -> dict[str, dict]:
    return tomllib.loads((DATA / "links.toml").read_text())
