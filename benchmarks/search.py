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
LAYOUTS = {
    "one device": Layout(),
    "FSDP": Layout(dp=64, shard="zero3"),
    "TP + SP": Layout(dp=8, tp=8, sequence_parallel=True),
    "PP": Layout(dp=16, pp=4),
    "TP × PP": Layout(dp=4, tp=4, pp=4),
    "FSDP × PP": Layout(dp=16, pp=4, shard="zero3"),
    "FSDP × PP, interleaved": Layout(dp=16, pp=4, shard="zero3", schedule="interleaved", chunks=2),
}


def main() -> None:
    model, there, job = shape("llama-3.1-8b"), cluster("h100-sxm", 64, 8, "ib-400"), Job(seq=8192, precision="bf16")
    # every prediction asks of another sequence, so that none finds another's arithmetic done
    asked = ((name, job.but(layout=layout, accumulate=16, seq=4096 + 8 * (i + PREDICTIONS * place)))
             for place, (name, layout) in enumerate(LAYOUTS.items()) for i in range(PREDICTIONS))
    alone = {name: [] for name in LAYOUTS}
    for name, of in asked:
        alone[name].append(timed(plan, model, of, there)[0])
    searches = [timed(search, model, there, 128, job.but(seq=seq)) for seq in SEQUENCES]
    each = [10_000 * seconds / found.layouts for seconds, found in searches]
    print(columns_text([
        ["", "median", "lowest", "highest", "runs"],
        *(row(f"one prediction, {name}, ms", [1e3 * seconds for seconds in times]) for name, times in alone.items()),
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
