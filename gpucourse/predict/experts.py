"""The operations of a mixture of experts in place of an MLP: route, send out, two halves of SwiGLU, bring back, add up.

No dry run holds this yet. It is the plain plan: the router's scores in fp32; the chosen tokens copied into one row a
visit, sorted by expert; each expert's three matrices applied to its rows in one grouped product; the results weighted,
and added up a token. With experts on several ranks the rows are sent and received in buffers of their own. Assumed:
every rank and every expert has equally many visits.
"""

from gpucourse.catalog.jobs import Precision
from gpucourse.predict.axes import Axes
from gpucourse.predict.linears import linear
from gpucourse.predict.sizes import size
from gpucourse.predict.tape import Op

SOURCE = ("mixture of experts: visits spread evenly over experts and ranks, one row each, no capacity beyond them; "
          "grouped products, scores in fp32")
ROWS = "n visits"  # of the routed tokens: each token once for each expert that it visits


def experts(precision: Precision, axes: Axes, x: str, saved: str, out: str) -> list[Op]:
    """From x to `out`, n tokens of h: the sum of what the visited experts give, of a rank's part of their width."""
    low, width = precision.compute, axes.part("expert_ffn")
    rows = size(f"{ROWS} h", low)
    ops, begin = router(precision, x, saved), x
    if precision.autocast:
        begin = "experts' input as 16-bit"
        ops.append(Op(begin, begin, size("n h", low), uses=(x,)))
    index = size(ROWS, 8)
    ops.append(Op("rows", "rows", rows, uses=(begin,), aside=index, ends=() if begin == x else (begin,)))
    given = "rows"
    if axes.ep > 1:
        ops += [Op("rows received", "rows received", rows, uses=("rows",), ends=("rows",)),
                Op("rows by expert", "rows by expert", rows, uses=("rows received",), aside=index,
                   ends=("rows received",))]
        given = "rows by expert"
    ops += swiglu(precision, given, width)
    made = "experts' rows"
    if axes.ep > 1:
        ops += [Op("rows back", "rows back", rows, uses=(made,), ends=(made,)),
                Op("rows as sent", "rows as sent", rows, uses=("rows back",), ends=("rows back",))]
        made = "rows as sent"
    return [*ops,
            Op("weighted", "weighted", rows, uses=(made, "chosen scores"), keeps=(made, "chosen scores")),
            Op(out, out, size("n h", low), uses=("weighted",), ends=("weighted", made))]


def router(precision: Precision, x: str, saved: str) -> list[Op]:
    """A score for each expert, the highest `visits` of them, and which they are."""
    scores = size("n experts", 4)
    return [*linear(precision, "router", x, "h", "experts", False, saved=saved),
            Op("scores", "scores", scores, uses=("router",), keeps=("scores",), ends=("router",), work=scores),
            Op("chosen scores", "chosen scores", size(ROWS, 4), uses=("scores",), aside=size(ROWS, 8),
               ends=("scores",))]


def swiglu(precision: Precision, given: str, width: str) -> list[Op]:
    """Of all experts that the rank has, one grouped product a matrix."""
    product = size(f"{ROWS} {width}", precision.compute)

    def grouped(out: str, x: str, inner: str, outer: str, ends: tuple[str, ...] = ()) -> list[Op]:
        return linear(precision, out, x, inner, outer, False, cast=False, ends=ends, rows=ROWS, copies="local_experts ")

    return [
        *grouped("experts' gate", given, "h", width),
        Op("experts' silu", "experts' silu", product, uses=("experts' gate",), keeps=("experts' gate",),
           ends=("experts' gate",)),
        *grouped("experts' up", given, "h", width, ends=(given,)),
        Op("experts' product", "experts' product", product, uses=("experts' silu", "experts' up"),
           keeps=("experts' silu", "experts' up"), ends=("experts' silu", "experts' up")),
        *grouped("experts' rows", "experts' product", width, "h", ends=("experts' product",)),
    ]
