"""A memory prediction that can be followed with a pencil: lines, formulas, and the instants at which each is alive."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpucourse.catalog.gpus import Gpu, gpu
from gpucourse.catalog.units import GiB, MiB
from gpucourse.evidence import ALL_INSTANTS, STATES, Memory, Readings, columns_text, table_html

# What the caching allocator holds beyond the tensors: rounding, and blocks that fit nothing (see docs/accuracy.md).
RESERVED = (1.03, 1.25)
# Outside every counter of torch, GiB: a CUDA context and its libraries; NCCL's buffers where there are several ranks.
CONTEXT_GIB = (0.5, 1.8)
COMMUNICATORS_GIB = (0.0, 2.0)


@dataclass(frozen=True)
class Line:
    """One part of a prediction. at: bytes at each instant; an instant at which it is not alive is absent."""

    name: str
    category: str
    formula: str
    at: Mapping[str, int]
    source: str = ""

    @property
    def bytes(self) -> int:
        return max(self.at.values(), default=0)


@dataclass(frozen=True)
class Ledger:
    """Lines whose sum at an instant is what is allocated then; the peak is the largest instant.

    host: lines in host memory, of which the device's sums have nothing.
    """

    title: str
    lines: tuple[Line, ...]
    where: str = ""  # what the letters of the formulas stand for
    ranks: int = 1
    host: tuple[Line, ...] = ()

    @property
    def instants(self) -> tuple[str, ...]:
        """Those at which something is alive: most stages of a pipeline have no loss, most models no middle blocks."""
        return tuple(i for i in ALL_INSTANTS if any(i in line.at for line in self.lines))

    def total(self, instant: str) -> int:
        return sum(line.at.get(instant, 0) for line in self.lines)

    @property
    def peak_at(self) -> str:
        return max(self.instants, key=self.total)

    @property
    def peak(self) -> int:
        """Bytes allocated at the largest instant."""
        return self.total(self.peak_at)

    @property
    def reserved(self) -> tuple[float, float]:
        """What the caching allocator of a GPU takes for it, bytes: low, high."""
        return self.peak * RESERVED[0], self.peak * RESERVED[1]

    @property
    def device(self) -> tuple[float, float]:
        """What the device reports as used, bytes: reserved, the CUDA context and NCCL's buffers; low, high."""
        context = (c + several * (self.ranks > 1) for c, several in zip(CONTEXT_GIB, COMMUNICATORS_GIB, strict=True))
        low, high = (size + gib * GiB for size, gib in zip(self.reserved, context, strict=True))
        return low, high

    def fits(self, card: Gpu | str) -> str:
        """yes, no or uncertain: the device's use against the capacity that torch reports for the card."""
        capacity = (gpu(card) if isinstance(card, str) else card).capacity
        low, high = self.device
        return "yes" if high <= capacity else "no" if low > capacity else "uncertain"

    def states(self) -> dict[str, int]:
        """Bytes of weights, gradients and optimizer state when all of them exist."""
        return {name: sum(line.bytes for line in self.lines if line.category == name) for name in STATES}

    def memory(self) -> Memory:
        """By category at each instant, as a dry run or a measurement gives it."""
        categories = dict.fromkeys([*STATES, *(line.category for line in self.lines)])
        at = {i: {c: sum(line.at.get(i, 0) for line in self.lines if line.category == c) for c in categories}
              for i in self.instants}
        lines = {c: {line.name: line.at[self.peak_at] for line in self.lines
                     if line.category == c and self.peak_at in line.at} for c in categories}
        return Memory(at, "computed", source="closed form", lines=lines)

    def readings(self) -> Readings:
        return self.memory().readings()

    def table(self) -> list[list[str]]:
        unit, name = (GiB, "GiB") if self.peak >= GiB else (MiB, "MiB")

        def cell(amount):
            return "–" if not amount else f"{amount / unit:.3f}" if amount >= unit / 2000 else "<0.001"

        def cells(amounts, mark=None):
            return [cell(amount) + (" ◀" if instant == mark else "") for instant, amount in amounts.items()]

        head = ["", "formula, bytes", *(f"{i}, {name}" if i == self.instants[0] else i for i in self.instants)]
        body = [[line.name, line.formula, *cells({i: line.at.get(i, 0) for i in self.instants})] for line in self.lines]
        foot = ["allocated", "", *cells({i: self.total(i) for i in self.instants}, mark=self.peak_at)]
        host = [[f"host: {line.name}", line.formula, *cells(dict(line.at))] for line in self.host]
        return [head, *body, foot, *host]

    def closing(self) -> str:
        """Reserved and device-used on a GPU, as intervals."""
        (low, high), (least, most) = self.reserved, self.device
        return (f"peak {self.peak / GiB:.2f} GiB at {self.peak_at} · on a GPU: reserved {low / GiB:.2f} … "
                f"{high / GiB:.2f}, device {least / GiB:.2f} … {most / GiB:.2f} GiB")

    def __str__(self) -> str:
        return f"{self.title}\n{columns_text(self.table(), left=2)}\n{self.closing()}\n{self.where}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p><b>{self.title}</b></p>{table_html(self.table(), left=2)}<p>{self.closing()}<br>{self.where}</p>"
