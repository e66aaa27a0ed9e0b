"""Parts of 01.6: four out-of-memory messages, diagnosed."""

from gpucourse.exercises.kinds import Pick, one_of

MESSAGES = {  # GiB: tried, capacity, free on the device, reserved and unallocated
    "A": (2.00, 23.6, 1.10, 1.90),
    "B": (24.00, 23.6, 12.80, 9.40),
    "C": (0.02, 4.0, 2.35, 0.02),
    "D": (6.00, 79.2, 1.50, 0.40),
}
VERDICTS = {
    "impossible": "More than the card has. Compare what was tried with the capacity first.",
    "too large": "Free and reserved together would have been enough, or the card itself is too small: compare again.",
    "fragmented": "Pieces can only be the reason when all of them together would be enough, and no single one is.",
    "elsewhere": "The device has no free piece of the size that was tried: PyTorch's own pool explains the refusal.",
}


def verdict(message: str) -> str:
    tried, capacity, free, unallocated = MESSAGES[message]
    if tried > capacity:
        return "impossible"
    if tried > free + unallocated:
        return "too large"
    return "elsewhere" if tried <= free else "fragmented"


def message_part(name: str) -> Pick:
    return one_of(VERDICTS, lambda: verdict(name))
