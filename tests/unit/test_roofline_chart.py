"""The roofline's picture, the calibration curve, and the published clocks."""

import io

from PIL import Image

from gpucourse.catalog import gpu, published
from gpucourse.live.calibration import calibration
from gpucourse.live.roofline import roofline

POINTS = {"a product": (120.0, 9e10), "an add": (1 / 12, 8e8), "a tiny add": (1 / 12, 1e7)}


def size_of(data):
    assert len(data) <= 60 * 1024
    return Image.open(io.BytesIO(data)).size


def test_the_roofline_is_small_and_says_its_ceilings():
    chart = roofline("two of three are near the roof", POINTS, 1e11, 1e10, "measured on a test")
    assert size_of(chart._repr_png_()) == (950, 360)
    assert str(chart) == ("two of three are near the roof: 3 operations under 100 GFLOP/s and 10 GB/s, ridge at 10 "
                          "FLOPs a byte, measured on a test")


def test_a_gpus_roof_is_in_tflops():
    chart = roofline("one", {"a product": (1000.0, 8e14)}, 9.89e14, 3.35e12, "published")
    assert "989 TFLOP/s and 3,350 GB/s" in str(chart)
    assert size_of(chart._repr_png_()) == (950, 360)


def off(id, **values):
    return {"event": "off", "exercise": id, "off": values}


def test_the_curve_takes_each_guess_once_in_order_with_its_latest_outcome():
    curve = calibration([{"event": "check", "exercise": "00.1", "state": "right"}, off("00.g1", peak=-0.9, other=1.0),
                         off("02.g1", time=0.0), off("00.g1", peak=-0.5)])
    assert curve.guesses == (("00.g1", "peak", 0.5), ("00.g1", "other", 2.0), ("02.g1", "time", 1.0))
    assert curve.factors == [2.0, 2.0, 1.0]
    assert str(curve).endswith("typically off by a factor of 2")
    assert size_of(curve._repr_png_()) == (950, 260)


def test_a_guess_of_nothing_has_no_factor():
    assert calibration([off("00.g1", peak=-1.0)]).guesses == ()


def test_without_guesses_there_is_a_line_and_no_picture():
    curve = calibration([])
    assert curve._repr_png_() is None
    assert str(curve).startswith("No guess has been held against a measurement yet")


def test_no_published_clock_that_waits_shows_less_than_one_that_does_not():
    rows = published("synchronization")
    assert len(rows) > 1 and all(float(row["ms_with"]) >= float(row["ms_without"]) for row in rows)
    assert all(row["source"] and gpu(row["device"]) for row in rows)
