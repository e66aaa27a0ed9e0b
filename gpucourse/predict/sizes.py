"""Sums of products of named dimensions: a number of bytes that can still be read as its formula."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod

Term = tuple[str, ...]  # ("n", "h") is n·h


class Dims(dict):
    """Elements along each dimension by its name; along a product of them by its term, and bytes of a Size, by itself:
    both are worked out once.
    """

    def __missing__(self, of: "str | Term | Size") -> int:
        if isinstance(of, str):
            raise KeyError(of)
        worked_out = prod(map(self.__getitem__, of)) if isinstance(of, tuple) else of.of(self)
        self[of] = worked_out
        return worked_out


class Unknown(Dims):
    """Dimensions that are not known yet: a size at them is the size itself, so that sums of sizes stay formulas."""

    def __missing__(self, of: "Size") -> "Size":
        return of


UNKNOWN = Unknown()


class Size:
    """Bytes as {product of dimensions: coefficient}: `size("n h", 4) + size("n", 8)` is n·(4h + 8)."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Term, int]):
        self.terms = {term: c for term, c in terms.items() if c}

    def __add__(self, other: "Size | int") -> "Size":
        """other: a size, or 0, with which a sum begins."""
        if not isinstance(other, Size):
            return self
        terms = dict(self.terms)
        for term, c in other.terms.items():
            terms[term] = terms.get(term, 0) + c
        return Size(terms)

    def __mul__(self, times: int) -> "Size":
        return Size({term: c * times for term, c in self.terms.items()})

    def __sub__(self, other: "Size | int") -> "Size":
        return self + -1 * other

    def __rsub__(self, zero: int) -> "Size":
        return -1 * self

    __radd__, __rmul__ = __add__, __mul__

    def covers(self, other: "Size") -> bool:
        """Whether it is at least `other` whatever the dimensions."""
        return all(self.terms.get(term, 0) >= other.terms.get(term, 0) for term in (*self.terms, *other.terms))

    def at(self, dims: Mapping[str, int]) -> int:
        """Bytes for these dimensions."""
        return (dims if isinstance(dims, Dims) else Dims(dims))[self]

    def of(self, dims: "Dims") -> int:
        return sum([c * dims[term] for term, c in self.terms.items()])

    def __str__(self) -> str:
        return formula(self)


NOTHING = Size({})
DOT = "·"


def size(product: str, coefficient: int = 1) -> Size:
    """`coefficient` bytes for each element of a product of dimensions: size("n h", 4) is 4·n·h."""
    return Size({tuple(product.split()): coefficient})


def total(sizes) -> Size:
    return sum(sizes, NOTHING)


@lru_cache(maxsize=4096)  # by identity: a prediction asks again for the sizes that costs.py keeps
def formula(of: Size) -> str:
    """`n·(64h + 4a + 16) + 2·V·h`: what every token holds in brackets, the rest after it."""
    parts = [_each_token(of, tokens) for tokens in ("n", "n/t")]
    rest = [f"{c}·{DOT.join(term)}" if term else str(c) for term, c in of.terms.items()
            if term[:1] not in (("n",), ("n/t",))]
    return " + ".join([*filter(None, parts), *rest]) or "0"


def _each_token(of: Size, tokens: str) -> str:
    """The terms that begin with a dimension of tokens."""
    each = {term[1:]: c for term, c in of.terms.items() if term[:1] == (tokens,)}
    if len(each) > 1:
        return f"{tokens}·({' + '.join(f'{c}{DOT.join(term)}' for term, c in each.items())})"
    return "".join(f"{c}·{DOT.join((tokens, *term))}" if term else f"{c}·{tokens}" for term, c in each.items())
