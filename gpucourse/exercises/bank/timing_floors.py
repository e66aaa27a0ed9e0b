"""Answers of 02.1, 02.2, 02.8: the rows at which a layer turns, the highest floor of six operations, a faster card."""

from gpucourse.catalog import gpu
from gpucourse.exercises.kinds import Misconception, Quantity
from gpucourse.predict.compute import ridge

H100 = gpu("h100-sxm")
RIDGE = ridge(H100.peak("bf16"), H100.bandwidth)
LAUNCH = 5  # µs


def turning_rows(intensity: float) -> float:
    """Rows of a 4096 → 4096 layer in 16 bits at which its FLOPs a byte are `intensity`."""
    return 1 / (1 / intensity - 2 / 4096)


def linear(m: int, k: int, n: int) -> tuple[int, int]:
    """FLOPs and bytes in 16 bits."""
    return 2 * m * k * n, 2 * (m * k + k * n + m * n)


PLACED = {  # FLOPs, bytes
    "A": linear(16384, 4096, 14336),
    "B": linear(64, 4096, 14336),
    "C": (16384 * 4096, 3 * 2 * 16384 * 4096),
    "D": (32 * 2 * 8192 * 128 * 8192, 32 * 2 * (2 * 8192 * 128 + 8192 * 8192)),
    "E": (32 * 4 * 8192 * 128 * 8192, 32 * 2 * 4 * 8192 * 128),
    "F": (4 * 4096, 2 * 3 * 4096),
}
FLOORS = {
    "compute": "That is its FLOPs at the peak. How long do its bytes take, and a launch?",
    "memory": "That is its bytes at the bandwidth. How long do its FLOPs take, and a launch?",
    "overhead": "That is the launch alone, and there is far more than 5 µs of work in it.",
}


def floors(name: str) -> dict[str, float]:
    """µs of each floor."""
    flops, moved = PLACED[name]
    return {"compute": 1e6 * flops / H100.peak("bf16"), "memory": 1e6 * moved / H100.bandwidth, "overhead": LAUNCH}


def placed(name: str, *misconceptions: Misconception) -> Quantity:
    heights = floors(name)
    lower = (Misconception(height, FLOORS[floor]) for floor, height in heights.items()
             if height < max(heights.values()))
    return Quantity(expected=max(heights.values()), unit="µs", misconceptions=(*misconceptions, *lower))


SIX = {
    "A": placed("A", Misconception(floors("A")["compute"] / 2, "A multiply-add is two FLOPs.")),
    "B": placed("B"),
    "C": placed("C", Misconception(floors("C")["memory"] * 2 / 3, "Two tensors are read, and a third is written.")),
    "D": placed("D", Misconception(1e6 * 32 * 2 * 8192 * 8192 / H100.bandwidth,
                                   "That is the scores alone. Queries and keys have to be read as well.")),
    "E": placed("E", Misconception(floors("E")["compute"] / 2, "There are two products: the scores, and the mixture "
                                                               "of the values.")),
    "F": placed("F"),
}

OLD, NEW, MOVED = 300e12, 600e12, 2e12  # FLOP/s of two cards, bytes/s of both


def faster(intensity: float) -> Quantity:
    """How many times as fast an operation of so many FLOPs a byte is on the new card, at its floor."""
    before, after = (min(peak, intensity * MOVED) for peak in (OLD, NEW))
    slips = {1.0: "It was held up by compute before: left of a ridge, or right of it?",
             2.0: "Where does it meet the slanted line? It has the same bytes to move as before."}
    return Quantity(expected=after / before, unit="×", misconceptions=tuple(
        Misconception(times, says) for times, says in slips.items() if times != after / before))
