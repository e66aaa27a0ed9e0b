"""What this device can reach: matrix products by dtype and copies by size, each in a fraction of a second."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gpucourse.catalog.units import MiB, bytes_text
from gpucourse.evidence import Figure, Readings, columns_text, number, table_html
from gpucourse.measure.devices import Device, device, synchronize
from gpucourse.measure.lock import quiet

CALL = 0.05  # seconds that the largest product may be expected to take
LOOK = 0.12  # seconds spent on each ceiling
LARGEST = {"cpu": 2048, "cuda": 16384}  # rows of a square product
CACHED, STREAMED = 2 * MiB, 256 * MiB  # a copy that stays in a CPU's or GPU's caches, and one that does not


@dataclass(frozen=True)
class Ceiling:
    """The best rate seen, in FLOP/s or bytes/s, on what, and what to know about it."""

    name: str
    rate: float
    unit: str
    on: str
    note: str = ""


@dataclass(frozen=True)
class Ceilings:
    rows: tuple[Ceiling, ...]
    device: str
    note: str = ""

    @property
    def flops(self) -> Mapping[str, float]:
        """FLOP/s of a matrix product, by dtype: fp64, fp32, bf16, fp16; tf32 on a GPU."""
        return {row.name.split()[0]: row.rate for row in self.rows if row.unit == "TFLOP/s"}

    @property
    def bandwidth(self) -> Mapping[str, float]:
        """Bytes/s, read and written together where both lie on the device, by name of the copy."""
        return {row.name: row.rate for row in self.rows if row.unit == "GB/s"}

    def readings(self) -> Readings:
        figures = (Figure(row.name, row.rate / SCALE[row.unit], row.unit, "measured", self.device, row.on)
                   for row in self.rows)
        return Readings("measured", tuple(figures), self.device)

    def table(self) -> list[list[str]]:
        rows = [[row.name, number(row.rate / SCALE[row.unit]), row.unit, row.on, row.note] for row in self.rows]
        return [["best rate", "measured", "unit", "on", ""], *rows, [self.device, "", "", "", self.note]]

    def __str__(self) -> str:
        return columns_text(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.table())


SCALE = {"TFLOP/s": 1e12, "GB/s": 1e9}


def ceilings(on: Device | None = None) -> Ceilings:
    """The rates that `on` (the lessons' device) reaches, in about three seconds or less; each is the best of several.

    Sizes grow as long as the next is expected to take at most CALL seconds, so that an emulated dtype costs little.
    """
    on = on or device()
    with quiet() as note:
        rows = [*_products(on), *_copies(on)]
        if on.kind == "cuda":
            rows += _host_copies(on)
    return Ceilings(tuple(rows), on.label, note)


def _products(on: Device) -> list[Ceiling]:
    dtypes = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    rows = [_product(name, dtype, on) for name, dtype in dtypes.items()]
    if on.kind == "cuda":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            rows.insert(2, _product("tf32", torch.float32, on))
        finally:
            torch.set_float32_matmul_precision(before)
    fp32 = next(row.rate for row in rows if row.name.startswith("fp32"))
    return [row if row.rate > fp32 / 10 else _slow(row, fp32) for row in rows]


def _slow(row: Ceiling, fp32: float) -> Ceiling:
    note = f"{fp32 / row.rate:,.0f} × slower than fp32: no fast kernel here, so the size is small"
    return Ceiling(row.name, row.rate, row.unit, row.on, note)


def _product(name: str, dtype: torch.dtype, on: Device) -> Ceiling:
    def rate(size: int, limit: float) -> float:
        a = torch.ones(size, size, dtype=dtype, device=on.torch)
        return 2 * size**3 / _best_seconds(lambda: a @ a, limit)

    size = 256
    best = rate(size, LOOK / 10)
    while size < LARGEST[on.kind] and 2 * (2 * size) ** 3 / best <= CALL:  # what the next size would take at this rate
        size *= 2
        best = max(best, rate(size, LOOK / 10))
    return Ceiling(f"{name} product", max(best, rate(size, LOOK)), "TFLOP/s", f"up to {size} × {size}")


def _copies(on: Device) -> list[Ceiling]:
    streamed = min(STREAMED, on.available // 8)
    return [_copy("copy, small", CACHED, on.torch, on.torch, 2), _copy("copy, large", streamed, on.torch, on.torch, 2)]


def _host_copies(on: Device) -> list[Ceiling]:
    return [_copy("host → device, pinned", STREAMED, "cpu", on.torch, 1),
            _copy("device → host, pinned", STREAMED, on.torch, "cpu", 1)]


def _copy(name: str, size: int, source: str, target: str, passes: int) -> Ceiling:
    crosses = source != target
    here = torch.zeros(size, dtype=torch.uint8, device=source, pin_memory=crosses and source == "cpu")
    there = torch.zeros(size, dtype=torch.uint8, device=target, pin_memory=crosses and target == "cpu")
    seconds = _best_seconds(lambda: there.copy_(here, non_blocking=True), LOOK)
    return Ceiling(name, passes * size / seconds, "GB/s", bytes_text(size), "read + written" if passes == 2 else "")


def _best_seconds(call: Callable, limit: float) -> float:
    """The least time of a call, from as many as fit in `limit` seconds after one to warm up; at least two."""
    call()
    synchronize()
    best, begin, runs = float("inf"), time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - begin < limit:
        start = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best
