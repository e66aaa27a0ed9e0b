"""The time of a collective on a link: α for each message, β for each byte; and what a benchmark's log says of it."""

from gpucourse.catalog.links import Link
from gpucourse.errors import BadInput, positive, positive_int, unknown

# Of n ranks: (messages one after another, bytes that a rank sends as a share of the whole buffer). Rings for the first
# three. The whole buffer of an all-gather is its output, of a reduce-scatter its input; of an all-to-all what one rank
# holds. nccl-tests, doc/PERFORMANCE.md.
COLLECTIVES = {
    "all-reduce": (lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    "all-gather": (lambda n: n - 1, lambda n: (n - 1) / n),
    "reduce-scatter": (lambda n: n - 1, lambda n: (n - 1) / n),
    "all-to-all": (lambda n: n - 1, lambda n: (n - 1) / n),
    "broadcast": (lambda n: n - 1, lambda n: 1.0),
    "reduce": (lambda n: n - 1, lambda n: 1.0),
    "send": (lambda n: 1, lambda n: 1.0),
    "copy": (lambda n: 1, lambda n: 1.0),  # between a card and its host, which are two
}


def messages(collective: str, ranks: int) -> int:
    """How many messages follow one another: each pays the latency α."""
    return 0 if positive_int("ranks", ranks) == 1 else _of(collective)[0](ranks)


def bus_factor(collective: str, ranks: int) -> float:
    """Bytes that one rank sends, as a share of the whole buffer: bus bandwidth ÷ algorithm bandwidth."""
    return 0.0 if positive_int("ranks", ranks) == 1 else _of(collective)[1](ranks)


def seconds(collective: str, size: float, ranks: int, link: Link) -> float:
    """α–β time of a collective over a buffer of `size` bytes: messages × α + bytes sent × β.

    Broadcast and reduce are pipelined along their chain, so they send the buffer once however many ranks there are.
    """
    if size < 0:
        raise BadInput(f"size is {size!r}; it must be at least 0 bytes")
    sent = bus_factor(collective, ranks) * size
    return messages(collective, ranks) * link.latency + sent / link.bandwidth


def half_size(collective: str, ranks: int, link: Link) -> float:
    """The buffer, in bytes, at which latency and bandwidth take the same time, so half of the bandwidth is reached."""
    if positive_int("ranks", ranks) == 1:
        raise BadInput("one rank sends nothing; a collective needs at least 2 ranks")
    return messages(collective, ranks) * link.latency * link.bandwidth / bus_factor(collective, ranks)


def fit(collective: str, ranks: int, sizes: list[float], times: list[float], name: str = "fitted") -> Link:
    """The α and β that best explain measured times (seconds) of a collective over buffers of `sizes` bytes.

    Least squares of the relative error, so that the small sizes, which show α, count as much as the large ones.
    """
    if len(sizes) != len(times) or len(set(sizes)) < 2:
        raise BadInput(f"{len(sizes)} sizes and {len(times)} times; a fit needs one time a size, and two sizes")
    hops, factor = messages(collective, ranks), bus_factor(collective, ranks)
    rows = [(hops / t, factor * size / t) for size, t in zip(sizes, times, strict=True)]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(x[0] for x in rows), sum(x[1] for x in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    if beta <= 0:
        raise BadInput("these times do not grow with the size; measure larger buffers")
    return Link(name, 1 / beta, max(alpha, 0.0))


def algorithm_bandwidth(size: float, elapsed: float) -> float:
    """Bytes/s as a caller sees it: buffer ÷ seconds."""
    return positive("size", size) / positive("seconds", elapsed)


def bus_bandwidth(collective: str, size: float, elapsed: float, ranks: int) -> float:
    """Bytes/s through a rank's link, comparable with the hardware's figure whatever the number of ranks."""
    return algorithm_bandwidth(size, elapsed) * bus_factor(collective, ranks)


def scaling_efficiency(few: float, many: float) -> float:
    """Weak scaling: tokens/s a GPU on many GPUs as a fraction of that on few."""
    return positive("tokens/s a GPU on many", many) / positive("tokens/s a GPU on few", few)


def _of(collective: str):
    if collective not in COLLECTIVES:
        raise unknown("collective", collective, COLLECTIVES)
    return COLLECTIVES[collective]
