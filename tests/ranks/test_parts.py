"""The parts of a launch that need no process: output, stacks, pickles, the line, the drawing."""

import linecache
import time

import pytest

from gpucourse.catalog.links import Link
from gpucourse.live.timeline import named, timeline
from gpucourse.ranks import messages, pickling, places
from gpucourse.ranks.line import Line
from gpucourse.ranks.relay import MOST_LINES, Relay
from gpucourse.ranks.report import Died, Raised, Returned, Waiting, failed, first_failure
from gpucourse.ranks.timeline import Span

DUMP = """Current thread 0x00007f12 (most recent call first):
  File "/nowhere/old.py", line 1 in old
Current thread 0x00007f12 (most recent call first):
  File "{torch}/distributed/distributed_c10d.py", line 3156 in all_reduce
  File "{torch}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/cell of mine.py", line 7 in <lambda>
  File "/home/me/train.py", line 3 in train
  File "<string>", line 1 in <module>
"""


def test_bytes_become_lines_however_they_are_cut(capsys):
    relay = Relay(3)
    for byte in "eins\nzwölf\r\n".encode():
        relay.feed(bytes([byte]))
    relay.feed(b"[Gloo] Rank 0 is connected\n\n\xff rest")
    relay.end()
    assert capsys.readouterr().out == "[rank 3] eins\n[rank 3] zwölf\n[rank 3] \n[rank 3] � rest\n"
    assert relay.last == ["eins", "zwölf", "� rest"]


def test_lines_are_counted_when_there_are_too_many(capsys):
    relay = Relay(0)
    relay.feed(b"x\n" * (MOST_LINES + 1234))
    relay.end()
    relay.end()
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST_LINES and last == "[rank 0] … 1,234 more lines are not shown"


def test_a_stack_names_the_collective_and_the_learner_s_line():
    torch = places.INSTALLED[0] + "/torch"
    frames = places.parse(DUMP.format(torch=torch))
    assert len(frames) == 5 and frames[2] == ("/home/me/cell of mine.py", 7, "<lambda>")
    linecache.cache["/home/me/cell of mine.py"] = (1, None, ["\n"] * 6 + ["  dist.all_reduce(x)\n"], "")
    assert places.waits(frames) == "waits in all_reduce at cell of mine.py, line 7, in <lambda>  →  dist.all_reduce(x)"
    assert places.waits(frames[:2]) == "waits in all_reduce"
    assert places.waits(frames[4:]) == "is still running"  # the process's own first line is nobody's place
    assert places.waits(frames[3:]) == "is still running at train.py, line 3, in train"
    assert places.waits(()) == "was still running and did not say where"
    assert places.parse("") == ()


def test_who_failed_first():
    early, late = Raised("ValueError", "", (), 1.0), Raised("ValueError", "", (), 2.0)
    assert first_failure({0: late, 1: early, 2: Returned(1)}) == 1
    assert first_failure({0: early, 1: Returned(1), 2: Died(-9)}) == 2  # the others lost their connection to it
    assert first_failure({0: Waiting(), 1: Returned(1)}) is None
    assert str(failed({0: Waiting()}, {0: ["a", "b"]}, 5)) == (
        'not all ranks had finished after 5 s\nrank 0 was still running and did not say where; it last printed "b"')


def test_a_function_keeps_the_file_that_it_is_from():
    names = {}
    exec(compile("def outer():\n    def inner():\n        return 1\n    return inner", "/tmp/cell 1.py", "exec"), names)
    inner = pickling.unpack(pickling.pack(names["outer"]()))
    assert inner() == 1 and inner.__code__.co_filename == "/tmp/cell 1.py"


def test_a_tensor_travels_beside_the_pickle_and_is_not_copied():
    import torch

    tensor = torch.arange(10.0)
    head, payload = pickling.pack({"tensor": tensor})
    assert len(head) < 1000 and payload.nbytes == 40
    tensor[0] = 5
    assert pickling.unpack([head, bytearray(payload)])["tensor"][0] == 5


def test_a_small_message_goes_in_one_piece_and_a_large_one_arrives_too():
    import socket
    import threading

    class Counted(socket.socket):
        pieces = 0

        def sendall(self, data):
            self.pieces += 1
            super().sendall(data)

    def sent(*frames):
        ours, theirs = socket.socketpair()
        with theirs, Counted(fileno=ours.detach()) as sender:
            thread = threading.Thread(target=messages.send, args=(sender, [*frames]))
            thread.start()
            got = messages.receive(theirs)
            thread.join()
            return got, sender.pieces

    assert sent(b"head", b"", b"x" * 1000) == ([b"head", b"", b"x" * 1000], 1)
    large = b"y" * 1_000_000
    got, pieces = sent(b"head", large)
    assert got == [b"head", large] and pieces == 3


def test_messages_leave_one_after_another_and_arrive_a_latency_later():
    line = Line(Link("", bandwidth=1e6, latency=0.5))
    now = time.monotonic()
    line.busy_until(now + 60)
    first, arrived = line.send(1000)
    second, _ = line.send(1000)
    assert first - now == pytest.approx(60 + 1e-3) and second - first == pytest.approx(1e-3)
    assert arrived - first == pytest.approx(0.5)
    assert line.ready(now) == second and line.ready(second + 1) == second + 1
    line.busy_until(second - 1)
    assert line.ready(now) == second


def test_a_timeline_s_shades_do_not_depend_on_what_the_link_carried_first():
    own = [Span("forward", 0.1, 0.2), Span("backward", 0.2, 0.4)]
    orders = [("barrier", "all-reduce"), ("all-reduce", "barrier")]
    names = [named(timeline([[Span(first, 0.0, 0.05, "link"), *own, Span(then, 0.3, 0.35, "link")]], "One rank"))
             for first, then in orders]
    assert names == [["forward", "backward", "all-reduce", "barrier"]] * 2


def test_a_timeline_is_drawn_small_and_named():
    spans = [[Span("forward", 0.0, 0.1), Span("backward", 0.1, 0.3), Span("all-reduce", 0.15, 0.25, "link")]] * 4
    chart = timeline(spans, "Four ranks", "simulated")
    picture = chart._repr_png_()
    assert str(chart) == "Four ranks (simulated): 4 ranks, 300 ms"
    assert picture.startswith(b"\x89PNG") and len(picture) <= 60 * 1024
    assert timeline(spans, "A part", begin=0.1, end=0.2)._repr_png_() != picture
    assert [len(rank) for rank in timeline(spans, "A part", begin=0.26, end=0.3).spans] == [1] * 4
    assert timeline([], "Nothing")._repr_png_().startswith(b"\x89PNG")
    many = [[Span(f"step {i % 6}", i * 1e-3, (i + 0.5) * 1e-3) for i in range(5000)]] * 8
    assert len(timeline(many, "Many")._repr_png_()) <= 60 * 1024
