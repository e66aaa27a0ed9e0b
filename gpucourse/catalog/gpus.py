"""GPUs by name, from data/gpus.toml: dense peaks, bandwidths, and the capacity that torch reports."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpucourse.catalog.units import GiB
from gpucourse.errors import unknown
from gpucourse.settings import DATA


@dataclass(frozen=True)
class Gpu:
    """One GPU. Rates are the vendor's, dense, decimal; `capacity_gib` is what torch reports as its total memory.

    tflops: {dtype: TFLOP/s}. achievable_bf16: best measured matrix product in TFLOP/s, 0 where unknown.
    link: the name, in data/links.toml, of what joins these GPUs within a node.
    sources: {"peak": …, "capacity": …, "achievable": …}.
    """

    name: str
    title: str
    tflops: Mapping[str, float]
    memory_gb: float
    memory_tb_s: float
    nvlink_gb_s: float
    pcie_gb_s: float
    link: str
    capacity_gib: float
    achievable_bf16: float
    sources: Mapping[str, str]

    @property
    def capacity(self) -> float:
        """Total memory in bytes, as torch reports it."""
        return self.capacity_gib * GiB

    @property
    def capacity_text(self) -> str:
        """`23.6 GiB`, or `258.54 GiB (estimated)` where no card's report was found."""
        return f"{self.capacity_gib:g} GiB" + " (estimated)" * self.sources["capacity"].startswith("estimated")

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth, bytes/s."""
        return self.memory_tb_s * 1e12

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s in a dtype, or BadInput where the card has no such rate."""
        if dtype not in self.tflops:
            raise unknown(f"{self.name}: peak for precision", dtype, self.tflops)
        return self.tflops[dtype] * 1e12


def gpu(name: str) -> Gpu:
    """The GPU of that name, or BadInput with the nearest known one."""
    rows = _rows()
    if name not in rows:
        raise unknown("GPU", name, rows)
    row = dict(rows[name])
    sources = dict(row.pop("sources"))
    if "capacity_gib" not in row:
        row["capacity_gib"] = 0.93 * row["memory_gb"]
        sources["capacity"] = f"estimated as 0.93 × {row['memory_gb']} GB: no torch message of this card was found"
    return Gpu(name=name, sources=sources, **{"achievable_bf16": 0.0} | row)


def gpus() -> tuple[str, ...]:
    """Every known name, in the order of the file."""
    return tuple(_rows())


@cache
def _rows() -> dict[str, dict]:
    return tomllib.loads((DATA / "gpus.toml").read_text())
