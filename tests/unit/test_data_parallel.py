"""The table of published scaling, and the count of buckets that exercise 10.1 holds an answer against."""

import pytest

from gpucourse.catalog import gpu, published
from gpucourse.exercises.bank.data_parallel_buckets import buckets


def test_published_scaling_has_the_same_work_a_gpu_on_more_and_more_gpus():
    rows = published("scaling")
    for model in {row["model"] for row in rows}:
        of = [row for row in rows if row["model"] == model]
        assert len(of) >= 3
        assert len({(row["seq"], row["micro_batch"], row["accumulate"], row["gpu"]) for row in of}) == 1
        counts = [int(row["gpus"]) for row in of]
        assert counts == sorted(set(counts))
    for row in rows:
        assert row["source"] and gpu(row["gpu"]) and float(row["tokens_per_second_per_gpu"]) > 0


@pytest.mark.parametrize(("sizes", "full", "count"), [
    ([8, 8, 8, 8], 16, 2), ([8, 8, 8], 16, 2), ([8, 8, 8], 1, 3), ([8, 8, 8], 100, 1), ([4, 20, 4], 8, 2), ([], 8, 0),
])
def test_a_bucket_is_closed_as_soon_as_it_is_full(sizes, full, count):
    assert buckets(sizes, full) == count
