"""Ranks that watch their loop: what the kernel hears, what it draws, and what is left whatever becomes of a rank."""

import io
import json
import pickle
import re
from array import array
from itertools import pairwise
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from gpucourse import ranks, watch
from gpucourse.catalog import GiB, MiB
from gpucourse.evidence import Figure
from gpucourse.live import all_ranks
from gpucourse.live.chart_png import png
from gpucourse.live.chart_svg import svg
from gpucourse.live.rank_loop import RankLoop
from gpucourse.live.ranks_picture import NAMED, RanksPicture

LINE = r"{title}, rank {rank}: peak [\d.]+ MiB \(resident, above Python's own\), [\d.,]+ ± [\d.,]+ samples/s over " \
       r"{steps} steps, measured on cpu \(\d+ cores\)"


def line(title: str, rank: int, steps: int) -> str:
    return LINE.format(title=title, rank=rank, steps=steps)


def loop(steps=40, begin=100.0, rate=50.0, size=300 * MiB, ending="running", title="training", live=False, **more):
    times = array("d", [0.1 * step for step in range(1, steps + 1)])
    return RankLoop(title, begin, 0.1 * steps + 0.1, times, array("d", [size] * steps), times,
                    array("d", [rate] * steps), steps, ending, "resident", "cpu (test)", None, live, **more)


def ended(rank: int, **more) -> RankLoop:
    figures = (Figure("peak resident", (rank + 1) * 100 * MiB / GiB, "GiB", "measured", "cpu (test)"),
               Figure("throughput", 50.0, "samples/s", more.pop("kind", "measured"), "cpu (test)"))
    return loop(size=(rank + 1) * 100 * MiB, ending="ended", figures=figures, line=f"the line of rank {rank}", **more)


def train(steps, fault="", sleep=0.02):
    """`steps` steps by rank, with a collective in each; at step 5 rank 1 meets its fault."""
    import os
    import signal
    import time

    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    with watch("training") as w:
        for step in range(steps[rank]):
            time.sleep(sleep)
            if len(set(steps)) == 1:
                dist.all_reduce(torch.ones(1000))
            w.step(8)
            if rank == 1 and step == 5:
                time.sleep(1)  # until the kernel has heard of some steps
                if fault == "raise":
                    raise ValueError("boom")
                if fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
    return w.readings()


def test_each_rank_leaves_its_line_and_keeps_its_readings(capsys):
    readings = ranks.run(train, 2, [20, 20])
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(line("training", 0, 20), first) and re.fullmatch(line("training", 1, 20), second)
    for rank, of_rank in enumerate(readings):
        assert [figure.name for figure in of_rank.figures] == ["peak resident", "throughput"]
        assert of_rank.kind == "measured" and of_rank.figures[0].source == f"watch: training, rank {rank}"
        assert 0 < of_rank.figures[1].value < 8 / 0.02


def test_over_a_paced_link_the_throughput_is_simulated(capsys):
    peak, throughput = ranks.run(train, 2, [5, 5], link="0.4:1000")[0].figures
    assert (peak.kind, throughput.kind) == ("measured", "simulated")
    assert all(said.endswith("; the link is simulated") for said in capsys.readouterr().out.splitlines())


def test_ranks_may_take_different_numbers_of_steps(capsys):
    ranks.run(train, 3, [3, 20, 7])
    said = capsys.readouterr().out.splitlines()
    assert [re.search(r"rank (\d): .* over (\d+) steps", one).groups() for one in said] == [
        ("0", "3"), ("1", "20"), ("2", "7")]


def test_a_rank_that_never_watches_is_no_fault(capsys):
    def some():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            with watch("rank 1 alone") as w:
                w.step(1)

    ranks.run(some, 2)
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("rank 1 alone, rank 1: peak")


def test_an_exception_on_one_rank_leaves_what_all_have_seen(capsys):
    with pytest.raises(ranks.RankError, match="rank 1 raised ValueError: boom"):
        ranks.run(train, 2, [20, 20], "raise")
    first, second = capsys.readouterr().out.splitlines()
    assert re.match(r"training, rank 0: cut off after [1-6] steps?; highest seen [\d.]+ MiB \(resident", first)
    assert second.startswith("training, rank 1: stopped by ValueError; its tensors are released; peak")


def test_a_killed_rank_leaves_what_was_seen_of_it(capsys):
    with pytest.raises(ranks.RankError, match="rank 1 was ended by signal 9"):
        ranks.run(train, 2, [20, 20], "kill")
    assert re.search("training, rank 1: cut off after [1-6] steps?; highest seen", capsys.readouterr().out)


def test_a_deadline_leaves_what_was_seen(capsys):
    def endless():
        import time

        with watch("endless") as w:
            while True:
                time.sleep(0.01)
                w.step(1)

    with pytest.raises(ranks.RankError, match="not all ranks had finished after 2 s"):
        ranks.run(endless, 2, timeout=2)
    assert len(re.findall(r"endless, rank [01]: cut off after \d+ steps", capsys.readouterr().out)) == 2


def test_an_interrupt_leaves_what_was_seen(capsys, monkeypatch):
    heard, hear = [], all_ranks.Chart.hear

    def interrupted(chart, rank, loop):
        hear(chart, rank, loop)
        heard.append(rank)
        if len(heard) > 5 and len(set(heard)) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(all_ranks.Chart, "hear", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        ranks.run(train, 2, [1000, 1000])
    assert len(re.findall(r"training, rank [01]: cut off after \d+ steps?; highest seen", capsys.readouterr().out)) == 2
    assert "rank 1 " in "".join(caught.value.__notes__)


def test_a_hundred_short_loops_and_two_at_once(capsys):
    def epochs():
        for _ in range(50):
            with watch("epoch") as w:
                w.step(1)
        with watch("outer") as outer, watch("inner") as inner:
            outer.step(1)
            inner.step(1)

    ranks.run(epochs, 2)
    said = [one.split(":")[0] for one in capsys.readouterr().out.splitlines()]
    assert said == ["epoch, rank 0", "epoch, rank 1"] * 50 + [
        f"{title}, rank {rank}" for title in ("inner", "outer") for rank in (0, 1)]


def test_figures_go_to_the_run_s_record_with_their_rank(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUCOURSE_RUN", str(tmp_path))
    monkeypatch.setenv("GPUCOURSE_LESSON", "99_test")
    ranks.run(train, 2, [3, 3])
    lines = [json.loads(one) for one in (tmp_path / "evidence.99_test.jsonl").read_text().splitlines()]
    assert sorted((one["source"], one["name"]) for one in lines) == [
        (f"watch: training, rank {rank}", name) for rank in (0, 1) for name in ("peak resident", "throughput")]


class Shown(list):
    """A screen that keeps what it would show."""

    def show(self, picture):
        self.append(picture())

    def freeze(self, picture, line):
        self.append((picture, line))


@pytest.fixture
def screens(monkeypatch):
    made = []
    monkeypatch.setattr(all_ranks, "Screen", lambda live: made.append(Shown()) or made[-1])
    monkeypatch.setattr(all_ranks, "in_notebook", lambda: True)
    return made


def test_one_chart_for_all_ranks_which_moves_as_they_do(screens):
    seen = all_ranks.AllRanks(2)
    for steps in (1, 2, 3):
        for rank in (0, 1):
            seen.hear(rank, loop(steps, begin=100.0 + rank))
    (screen,) = screens
    assert [picture.state for picture in screen][1:] == [
        "2 ranks, 1 step, running", "2 ranks, 1 to 2 steps, running", "2 ranks, 2 steps, running",
        "2 ranks, 2 to 3 steps, running", "2 ranks, 3 steps, running"]
    first, second = screen[-1].memory_curves()
    assert [later - earlier for earlier, later in zip(first.times, second.times, strict=True)] == pytest.approx([1] * 3)


def test_the_line_of_all_ranks(screens):
    seen = all_ranks.AllRanks(2)
    for rank in (0, 1):
        seen.hear(rank, ended(rank))
    seen.close()
    picture, said = screens[0][-1]
    assert said == ("training: 2 ranks, highest peak 200.0 MiB on rank 1 (resident), 100 samples/s together over "
                    "40 steps, measured on cpu (test)")
    assert picture.state == "2 ranks, 40 steps, ended"


def test_the_line_says_which_rank_did_not_come_to_its_end(screens):
    seen = all_ranks.AllRanks(3)
    seen.hear(0, ended(0, kind="simulated"))
    seen.hear(1, loop(12))
    seen.close()
    _, said = screens[0][-1]
    assert said == ("training: rank 0 ended, rank 1 cut off; 2 of 3 ranks, highest peak 300.0 MiB on rank 1 "
                    "(resident), 12 to 40 steps, measured on cpu (test); the link is simulated")


def test_a_loop_is_on_the_chart_of_its_title_and_turn(screens):
    seen = all_ranks.AllRanks(2)
    seen.hear(0, loop(begin=1.0))
    seen.hear(0, loop(begin=2.0))  # the second epoch of rank 0, before rank 1 has begun its first
    seen.hear(1, loop(begin=1.5))
    seen.hear(1, loop(title="validation", begin=1.6))
    seen.hear(1, loop(begin=2.5))
    assert [sorted(screen[-1].loops) for screen in screens] == [[0, 1], [0, 1], [1]]


def texts(drawing):
    return [element.text for element in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("count", [1, 2, NAMED, NAMED + 1, 64])
def test_both_drawings_name_ranks_beside_their_lines_and_are_small(count):
    loops = {rank: loop(160, rate=50.0 + rank, size=(300 + rank) * MiB) for rank in range(count)}
    picture = RanksPicture("training", loops, count)
    said = texts(svg(picture))
    assert "throughput, samples/s" in said and "memory, MiB: resident" in said
    if count <= NAMED:
        assert [one for one in said if one.startswith("rank")] == [
            f"rank {r}  {300 + r}" for r in range(count)] + [f"rank {r}  {50 + r}" for r in range(count)]
    else:
        assert [one for one in said if "rank" in one] == [
            "min: rank 0  300", f"max: rank {count - 1}  {299 + count}",
            "min: rank 0  50", f"max: rank {count - 1}  {49 + count}"]
    drawn = png(picture)
    assert len(drawn) <= 60 * 1024 and Image.open(io.BytesIO(drawn)).size == (950, 300)


def test_lines_of_up_to_eight_ranks_stay_apart():
    curves = RanksPicture("training", {rank: loop() for rank in range(NAMED)}, NAMED).rate_curves()
    assert len({(curve.colour, curve.dashes) for curve in curves}) == NAMED
    assert all(one.dashes != other.dashes for one, other in pairwise(curves))  # on each other they still show


def test_no_step_yet_is_drawn_as_such():
    picture = RanksPicture("training", {0: loop(0)}, 2)
    assert "no step yet" in texts(svg(picture)) and png(picture).startswith(b"\x89PNG")
    assert picture.state == "1 of 2 ranks, 0 steps, running"


def test_what_travels_is_small_however_long_the_loop(capsys):
    """At most as many points as the chart has, so that hearing eight ranks five times a second stays cheap."""
    assert len(pickle.dumps(loop(240))) < 10_000

    def long():
        from gpucourse.live import to_kernel

        sent = []
        to_kernel.ToKernel._tell = lambda self, picture, line="": sent.append(
            to_kernel.rank_loop(picture, 0.0, False, line))
        with watch("long") as w:
            for _ in range(5000):
                w.step(1)
        return len(pickle.dumps(sent[-1])), sent[-1].steps

    (size, steps), = ranks.run(long, 1)
    assert steps == 5000 and size < 10_000


def test_elsewhere_watch_is_as_it_was(capsys):
    with watch("here") as w:
        w.step(1)
    assert capsys.readouterr().out.startswith("here: peak")


def notebook(source: str):
    cells = [nbformat.v4.new_code_cell(f"from gpucourse import ranks, watch\n{source}")]
    shown = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(shown, timeout=100, kernel_name="python3", allow_errors=True).execute()
    return shown.cells[0].outputs


CELL = """
def train():
    import time
    import torch.distributed as dist
    with watch("in a notebook") as w:
        for step in range({steps}):
            time.sleep(0.03)
            w.step(8)
            if {fault} and dist.get_rank() == 1:
                raise ValueError("boom")
_ = ranks.run(train, 2)
"""


@pytest.mark.parametrize("fault", [False, True])
def test_a_notebook_keeps_one_picture_and_one_line(fault):
    outputs = notebook(CELL.format(fault=fault, steps=2000 if fault else 10))
    (picture,) = (output for output in outputs if "image/png" in output.get("data", {}))
    (said,) = (output.text for output in outputs if output.output_type == "stream")
    start = "in a notebook: rank 0 cut off, rank 1 stopped by ValueError; " if fault else "in a notebook: "
    assert said.startswith(f"{start}2 ranks, highest peak ") and said.count("\n") == 1
    assert picture.data["text/plain"] == said.strip()
    assert [output.output_type for output in outputs].count("error") == fault
