"""Published batch sizes and set-ups, held against the arithmetic that depends on them alone."""

from gpucourse.catalog import published


def test_llm_cs_accumulation_follows_from_its_batch():
    runs = [row for row in published("throughput") if row["case"] == "B10"]
    follows = [int(row["global_batch"]) / (int(row["micro_batch"]) * int(row["gpus"])) for row in runs]
    assert follows == [1, 1, 2, 8] == [int(row["accumulate"]) for row in runs]


def test_gpt_3_takes_larger_batches_at_smaller_rates_as_it_grows():
    rows = published("batch_sizes")
    batches = [float(row["tokens_per_step"].removesuffix("M")) for row in rows]
    rates = [float(row["learning_rate"]) for row in rows]
    assert len(rows) == 8 and batches == sorted(batches) and rates == sorted(rates, reverse=True)
    assert all("2005.14165" in row["source"] for row in rows)
