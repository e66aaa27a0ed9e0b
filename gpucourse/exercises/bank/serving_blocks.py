"""Check of 06.3: a block allocator, with many sequences on one pool."""

import random

from gpucourse.exercises.expect import expect_equal
from gpucourse.predict.paging import blocks_for


def run_grow(function):
    """Many sequences on one pool: whole blocks, no more than needed, none taken when refused, none moved."""
    refused = moved = spare = lost = 0
    for size in random.sample((3, 4, 8, 16), 3):
        count = random.randint(24, 60)
        free, tables, lengths = list(range(count)), {}, {}
        random.shuffle(free)
        for step in range(300):
            sequence, tokens = random.randrange(7), random.choice((1, 1, 2, size - 1, size, 2 * size + 1))
            tokens = tokens if step else size * count + 1  # the first asks for more than there is
            table, length = tables.setdefault(sequence, []), lengths.get(sequence, 0)
            if length and random.random() < 0.12:  # it has ended: the server gives its blocks back
                free += tables.pop(sequence)
                del lengths[sequence]
                continue
            before, left = list(table), len(free)
            need = blocks_for(length + tokens, size) - len(before)
            got = function(free, table, length, tokens, size)
            if got is not (need <= left):
                yield expect_equal(f"room for {tokens} more of {length} tokens, {len(before)} blocks held "
                                   f"and {left} free, {size} tokens a block", got, need <= left,
                                   note="Free blocks serve wherever they lie. The room left in the last block comes "
                                        "first: True where the blocks still missing are free.")
                return
            if got:
                lengths[sequence] = length + tokens
                moved += table[:len(before)] != before
                spare += len(table) - blocks_for(length + tokens, size)
            else:
                refused += len(free) != left or table != before
        lost += sorted(free + [block for table in tables.values() for block in table]) != list(range(count))
    yield expect_equal("pools in which a block was lost or given twice", lost, 0,
                       note="Blocks come out of `free` and go into the table, each once.")
    yield expect_equal("blocks beyond those needed", spare, 0,
                       note="A sequence of `length` tokens fills the room left in its last block before it takes "
                            "another: it never wastes a whole block.")
    yield expect_equal("refusals that took something", refused, 0,
                       note="A refusal takes nothing: count first, then take.")
    yield expect_equal("tables that changed their earlier blocks", moved, 0,
                       note="The tokens that are stored stay where they are: only append to the table.")


def broken_grow(kind):
    def grow(free, table, length, tokens, block_size):
        need = blocks_for(length + tokens, block_size) - len(table)
        if kind == "one more":
            need = (length + tokens) // block_size + 1 - len(table)
        if kind == "each call":
            need = blocks_for(tokens, block_size)
        if kind == "in one piece" and need > 0:
            first = table[-1] + 1 if table else min(free, default=0)
            if not set(range(first, first + need)) <= set(free):
                return False
        if kind == "takes what there is":
            while need > 0 and free:
                table.append(free.pop())
                need -= 1
            return need <= 0
        if need > len(free):
            return False
        table.extend(free.pop() for _ in range(need))
        if kind == "front":
            table.reverse()
        if kind == "shares":
            free[:0] = table[-1:]
        return True
    return grow
