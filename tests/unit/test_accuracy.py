"""docs/accuracy.md is in step with the predictors, leaves no published row out, and says what it claims."""

import pytest

from gpucourse.catalog.published import published
from gpucourse.course.accuracy import PAGE, active, at_rest, collectives, quantities, reserved, step_rate, utilization
from gpucourse.course.accuracy_page import Row, Section, document


def test_the_page_is_in_step():
    assert PAGE.read_text() == document(quantities()), "run: python -m gpucourse.course.accuracy"


def test_no_published_row_is_dropped():
    memory, speed = published("memory"), published("throughput")
    for section, quantity in ((reserved(), "reserved"), (active(), "active")):
        assert len(section.rows) + len(section.unpinned) == sum(row["quantity"] == quantity for row in memory)
    rest = at_rest()
    assert len(rest.rows) + len(rest.unpinned) == len(published("allocators"))
    rates = step_rate()
    assert len(rates.rows) + len(rates.unpinned) == len(memory) + len(speed)
    shares, flops = (utilization(column, "", "") for column in ("mfu_percent", "tflops_per_gpu"))
    assert len(shares.rows) + len(flops.rows) == sum(bool(row["mfu_percent"] or row["tflops_per_gpu"]) for row in speed)
    assert len(collectives().rows) == len(published("allreduce_8xa100"))


def test_every_row_that_is_not_pinned_down_has_its_reason():
    for section in (reserved(), active(), step_rate()):
        assert all(what and reason for what, reason in section.unpinned)


def test_a_row_is_inside_or_off_by_what_is_missing():
    assert Row("", 1.0, 2.0, 1.5).inside and Row("", 1.0, 2.0, 1.5).off == 0
    assert Row("", 1.0, 2.0, 2.5).off == pytest.approx(0.25)
    assert Row("", 1.0, 2.0, 0.5).off == pytest.approx(-0.5)
    assert Row("", 2.0, 2.0, 2.1).off == pytest.approx(0.05)


def test_a_summary_counts_the_rows_inside():
    rows = (Row("", 1.0, 1.2, 1.1), Row("", 1.0, 1.3, 1.2), Row("", 1.0, 1.2, 1.5), Row("", 1.0, 1.2, 0.9))
    assert Section("x", "GiB", rows, (("y", "z"),)).summary() == [
        "x", "4", "2 of 4, high ÷ low at most 1.30", "5 %", "25 %", "1"]


def test_rates_that_the_interval_was_not_read_off_lie_in_it():
    # the interval comes from the other rows of throughput.csv
    fresh = [row for row in step_rate().rows if any(name in row.what for name in ("128 ×", "h200", "llama-3.2-3b"))]
    assert len(fresh) == 11
    assert all(row.inside for row in fresh)
