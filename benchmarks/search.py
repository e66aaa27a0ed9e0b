"""What one prediction costs, and a search over more than 10,000 layouts.

    python benchmarks/search.py
"""

import statistics
from time import perf_counter

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.models import shape
from gpucourse.evidence import columns_text
from gpucourse.predict.plan import plan
from gpucourse.predict.search import search

PREDICTIONS = 100
SEQUENCES = (8192, 4096, 2048, 1024, 512)


def main() -> None:
    model, there, job = shape("llama-3.1-8b"), cluster("h100-sxm", 64, 8, "ib-400"), Job(seq=8192, precision="bf16")
    sharded = job.but(layout=Layout(dp=64, shard="zero3"))
    # every prediction asks of another sequence, so that none finds another's arithmetic done
    alone = [timed(plan, model, sharded.but(seq=4096 + i), there)[0] for i in range(PREDICTIONS)]
    searches = [timed(search, model, there, 128, job.but(seq=seq)) for seq in SEQUENCES]
    each = [10_000 * seconds / found.layouts for seconds, found in searches]
    print(columns_text([
        ["", "median", "lowest", "highest", "runs"],
        row("one prediction, ms", [1e3 * seconds for seconds in alone]),
        row(f"a search over {min(found.layouts for _, found in searches):,} layouts or more, s",
            [seconds for seconds, _ in searches]),
        row("the same for 10,000 layouts, s", each),
    ]))


def timed(call, *given) -> tuple[float, object]:
    start = perf_counter()
    result = call(*given)
    return perf_counter() - start, result


def row(what: str, values: list[float]) -> list[str]:
    return [what, *(f"{value:.3g}" for value in (statistics.median(values), min(values), max(values))),
            str(len(values))]


if __name__ == "__main__":
    main()
