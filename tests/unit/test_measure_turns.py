"""Calls timed in turn, events, and which floor holds a linear layer up."""

import pytest
import torch

from gpucourse import measure
from gpucourse.errors import BadInput, Missing
from gpucourse.measure.events import event_seconds
from gpucourse.measure.turns import in_turn


def test_each_round_has_every_call_and_the_first_is_not_timed():
    made = []
    seconds = in_turn({"a": lambda: made.append("a"), "b": lambda: made.append("b")}, rounds=3)
    assert made == ["a", "b"] * 4
    assert {name: len(runs) for name, runs in seconds.items()} == {"a": 3, "b": 3}
    assert all(run > 0 for runs in seconds.values() for run in runs)


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True])
def test_rounds_are_a_whole_number(rounds):
    with pytest.raises(BadInput, match="rounds is"):
        in_turn({"a": lambda: None}, rounds)


def test_events_say_that_they_need_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Missing, match="events need a GPU"):
        event_seconds(lambda: None)


def test_events_take_a_whole_number_of_repeats():
    with pytest.raises(BadInput, match="repeats is 0"):
        event_seconds(lambda: None, repeats=0)


def test_one_row_is_held_up_by_memory_and_many_are_not():
    """128 rows are 128 times the FLOPs and nearly the same bytes: they cost more, and far less than 128 times."""
    weights = torch.randn(2048, 2048)
    one, many = torch.randn(2048), torch.randn(128, 2048)
    ratio = measure.alternate(lambda: many @ weights, lambda: weights @ one, rounds=15)
    assert 1.5 < ratio.value < 64, ratio
