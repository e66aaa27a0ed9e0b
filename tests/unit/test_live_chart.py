"""The chart's history and its two drawings."""

import io
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from PIL import Image

from gpucourse.catalog import GiB, MiB
from gpucourse.live.chart_png import png
from gpucourse.live.chart_svg import svg
from gpucourse.live.picture import LAYERS, Picture, bands, layers, running_median, short, spread, ticks
from gpucourse.live.series import MemoryPoint, StepPoint, memory_history, step_history

NAMESPACE = "{http://www.w3.org/2000/svg}"


def picture(steps, step=0.25, budget=None, lines=(), title="training"):
    memory, rates, phases = memory_history(), step_history(), []
    for i in range(steps):
        begin = i * step
        phases += [(begin, "forward"), (begin + step / 3, "backward"), (begin + step / 2, "step"), (begin + step, "")]
        states = (400 * MiB, 800 * MiB, 400 * MiB) if i else (400 * MiB, 0, 0)
        memory.add(MemoryPoint(begin, states, sum(states) + (i % 7) * 100 * MiB, lines))
        rates.add(StepPoint(begin, begin + step, 8))
    return Picture(title, "running", max(steps * step, 0.1), memory.points(), rates.points(),
                   phases[-160:], "resident memory", "cpu (2 cores)", budget)


def texts(drawing):
    return [element.text for element in ElementTree.fromstring(drawing).iter(f"{NAMESPACE}text")]


def test_ten_thousand_steps_stay_bounded_and_lose_no_peak_and_no_step():
    memory, steps = memory_history(), step_history()
    for i in range(10_000):
        memory.add(MemoryPoint(float(i), (0, 0, 0), 10_000 if i == 6_543 else i % 100))
        steps.add(StepPoint(float(i), i + 1.0, 3))
        assert len(memory.points()) <= 240 and len(steps.points()) <= 240
    assert max(memory.points(), key=lambda point: point.total) == MemoryPoint(6543.0, (0, 0, 0), 10_000)
    assert sum(point.samples for point in steps.points()) == 30_000
    assert sum(point.steps for point in steps.points()) == 10_000
    assert all(a.end == b.begin for a, b in pairwise(steps.points()))
    assert all(a.time < b.time for a, b in pairwise(memory.points()))


def test_layers_stack_and_what_is_not_told_apart_is_the_last():
    edges = layers([MemoryPoint(0, (1, 2, 3), 10), MemoryPoint(1, (1, 2, 3), 4)])
    assert edges == [[1, 1], [3, 3], [6, 6], [10, 6]]


def test_running_median_ignores_one_slow_step():
    assert running_median([1, 10, 10, 10, 1, 10, 10]) == [1, 5.5, 10, 10, 10, 10, 10]


def test_bands_only_where_they_can_be_seen():
    assert [phase for _, _, phase in bands(picture(2), 260)] == ["forward", "backward", "step"] * 2
    assert bands(picture(60), 260) == []
    assert bands(picture(0), 260) == []


@pytest.mark.parametrize("most", [0.013, 1, 3.7, 99, 12_345])
def test_ticks_are_few_and_within(most):
    values = ticks(most)
    assert 3 <= len(values) <= 6
    assert values[0] == 0 and values[-1] <= most * (1 + 1e-9)


def test_labels_are_moved_apart_and_keep_their_order():
    placed = spread([50, 52, 51, 300], 15, 0, 300)
    assert placed[0] < placed[2] < placed[1] < placed[3] <= 300
    assert min(b - a for a, b in pairwise(sorted(placed))) >= 15
    assert spread([300, 300], 15, 0, 300) == [285, 300]


@pytest.mark.parametrize("shown", [picture(0), picture(1), picture(12, budget=3 * GiB), picture(5000, 0.01),
                                   picture(9, lines=(("reserved", 3 * GiB), ("device used", 4 * GiB)))],
                         ids=["no step", "one step", "a budget", "five thousand steps", "a GPU's lines"])
def test_both_drawings_are_well_formed_and_small(shown):
    drawing = svg(shown)
    assert {"training", "throughput, samples/s"} <= set(texts(drawing))
    assert "nan" not in drawing and len(drawing) < 20_000
    picture_bytes = png(shown)
    assert len(picture_bytes) <= 60 * 1024
    assert Image.open(io.BytesIO(picture_bytes)).size == (950, 300)


def test_the_svg_says_what_it_shows():
    said = " | ".join(texts(svg(picture(12, budget=3 * GiB))))
    assert "memory, GiB: resident memory" in said
    assert "weights 0.391" in said and "activations and other" in said and "budget 3" in said
    assert "running median 32" in said
    assert "forward, backward, step" in said
    assert "forward, backward, step" not in " | ".join(texts(svg(picture(500))))
    assert "reserved 4" in " | ".join(texts(svg(picture(9, lines=(("reserved", 4 * GiB),)))))


def test_a_title_is_escaped():
    assert "a < b & c" in texts(svg(picture(1, title="a < b & c")))


def test_layers_stay_apart_in_grey():
    def lightness(colour):
        r, g, b = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
        return 0.299 * r + 0.587 * g + 0.114 * b

    greys = [lightness(colour) for _, colour in LAYERS]
    assert all(b - a > 25 for a, b in pairwise(greys))


@pytest.mark.parametrize("value, said", [(0, "0"), (0.4567, "0.457"), (41.23, "41.2"), (1234.5, "1,234")])
def test_three_figures(value, said):
    assert short(value) == said
