"""A paged cache: sequences hold whole blocks from one pool, in any order, as pages of memory are held."""

from gpucourse.errors import BadInput, positive_int


def blocks_for(tokens: int, block_size: int) -> int:
    """Whole blocks that hold `tokens`."""
    return -(-tokens // block_size)


class BlockPool:
    """`count` blocks of `block_size` tokens each, of one KV cache.

    A sequence wastes less than one block: what is left of its last one (paged attention, arXiv 2309.06180).
    """

    def __init__(self, count: int, block_size: int = 16):
        self.count, self.block_size = positive_int("blocks", count), positive_int("block-size", block_size)
        self.free = list(range(count))
        self.tables: dict[object, list[int]] = {}  # of each sequence, its blocks in the order of its tokens
        self.lengths: dict[object, int] = {}

    def grow(self, sequence: object, tokens: int) -> bool:
        """Make room for `tokens` more of a sequence; False, and nothing taken, where too few blocks are free."""
        length = self.lengths.get(sequence, 0) + positive_int("tokens", tokens)
        table = self.tables.get(sequence, [])
        missing = blocks_for(length, self.block_size) - len(table)
        if missing > len(self.free):
            return False
        self.tables[sequence] = table + [self.free.pop() for _ in range(missing)]
        self.lengths[sequence] = length
        return True

    def release(self, sequence: object) -> None:
        """Give all blocks of a sequence back."""
        if sequence not in self.tables:
            raise BadInput(f"sequence {sequence!r} holds no blocks; release it once, after it has grown")
        self.free += self.tables.pop(sequence)
        del self.lengths[sequence]

    @property
    def wasted(self) -> int:
        """Places for tokens that are taken and hold none."""
        return (self.count - len(self.free)) * self.block_size - sum(self.lengths.values())
