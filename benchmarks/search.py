"""What one prediction costs, and a search over 10,000 layouts."""

import statistics
from itertools import islice
from time import perf_counter

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.models import shape
from gpucourse.errors import BadInput
from gpucourse.evidence import columns_text
from gpucourse.predict.candidates import candidates
from gpucourse.predict.plan import plan
from gpucourse.predict.search import search

ROUNDS = 5
LAYOUTS = 10_000


def main() -> None:
    model, there, job = shape("llama-3.1-8b"), cluster("h100-sxm", 64, 8, "ib-400"), Job(seq=8192, precision="bf16")
    rounds = [predicted(model, there, job, seed) for seed in range(ROUNDS)]
    rows = [["", "median", "lowest", "highest", "runs"],
            row("one prediction, ms", [1e3 * seconds / count for seconds, count in rounds]),
            row(f"{LAYOUTS:,} layouts, s", [seconds * LAYOUTS / count for seconds, count in rounds])]
    start = perf_counter()
    found = search(model, there, 128, job)
    rows.append(row(f"a search over {sum(found.verdicts.values()):,} layouts, s", [perf_counter() - start]))
    print(columns_text(rows))


def predicted(model, there, job, seed: int) -> tuple[float, int]:
    """Seconds for LAYOUTS predictions, and how many of them there were; every round asks of another sequence."""
    jobs = list(islice(candidates(model, there, 128, job.but(seq=8192 // 2**seed)), LAYOUTS))
    count, start = 0, perf_counter()
    for one in jobs:
        try:
            plan(model, one, there)
        except BadInput:
            continue
        count += 1
    return perf_counter() - start, count


def row(what: str, values: list[float]) -> list[str]:
    return [what, *(f"{value:.3g}" for value in (statistics.median(values), min(values), max(values))),
            str(len(values))]


if __name__ == "__main__":
    main()
