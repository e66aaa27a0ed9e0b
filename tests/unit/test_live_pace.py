"""How often the live chart is drawn: a fixed share of a core goes into it at most, however long a drawing takes."""

import types
from itertools import pairwise

import pytest

from gpucourse.live import screen


@pytest.fixture
def clock(monkeypatch):
    """A played clock, which shows `now` seconds to the pace."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(screen, "time", types.SimpleNamespace(monotonic=lambda: clock.now,
                                                              thread_time=lambda: clock.now))
    return clock


@pytest.mark.parametrize("takes", [0.0001, 0.002, 0.05, 1.0])
def test_drawing_takes_at_most_its_share(clock, takes):
    pace, drawn = screen.Pace(), []

    def draw():
        drawn.append(clock.now)
        clock.now += takes

    while len(drawn) < 6:
        pace.draw(draw)
        clock.now += 0.001  # somebody asks a thousand times a second
    apart = [later - earlier - takes for earlier, later in pairwise(drawn)]
    assert min(apart) >= max(screen.REDRAW, takes / screen.SHARE) - 1e-9
    assert max(apart) <= max(screen.REDRAW, takes / screen.SHARE) + 0.002
