"""The tape over formulas: what it calls candidates has the highest moment of every size of tokens, model and ranks."""

from hypothesis import given
from hypothesis import strategies as some

from gpucourse.catalog.jobs import PRECISIONS
from gpucourse.catalog.models import shape
from gpucourse.predict import costs, network, recompute, tape
from gpucourse.predict.axes import Axes
from gpucourse.predict.sizes import NOTHING, UNKNOWN, Dims, size


def test_sizes_are_added_subtracted_and_begin_with_zero():
    a, b = size("n h", 4), size("n", 8)
    assert str(sum([a, b])) == str(a + b) == "n·(4h + 8)"
    assert (a + b - b).terms == a.terms and (0 - a).at(Dims(n=2, h=3)) == -24
    assert a - 0 is a and (a - a).terms == NOTHING.terms


def test_a_size_covers_another_where_no_dimension_can_make_it_smaller():
    assert (size("n h", 4) + size("n")).covers(size("n h", 4))
    assert not size("n h", 4).covers(size("n"))  # h may be 0
    assert (size("n h", 4) - size("n")).covers(size("n h", 4) - size("n", 2))


@given(tokens=some.integers(1, 10_000), hidden=some.integers(1, 300), ffn=some.integers(1, 900),
       vocab=some.integers(1, 5000), ranks=some.sampled_from((1, 2)), again=some.booleans(), lent=some.booleans(),
       word=some.sampled_from(("none", "attention", "op", "op-2", "full")),
       precision=some.sampled_from(tuple(PRECISIONS)), model=some.sampled_from(("gpt2", "llama-3.1-8b")))
def test_candidates_have_the_highest_moment(tokens, hidden, ffn, vocab, ranks, again, lent, word, precision, model):
    width, axes = PRECISIONS[precision], Axes(tp=ranks)
    of = shape(model).but(hidden=2 * shape(model).heads * hidden, ffn=2 * ffn, vocab=2 * vocab)
    ops, dims = costs.operations(of, width, axes, False, False), axes.values(of, tokens)
    came, left = {network.STREAM: costs.stream(width, axes)}, recompute.left(ops, word)
    runs = [lambda at: tape.forward(ops, at, left),
            lambda at: tape.backward(ops, at, came, again, lent, recompute.replay(ops, at, word))]
    for run in runs:
        formulas = run(UNKNOWN)
        candidates = tape.candidates(formulas)
        assert tape.highest_at(candidates, dims).bytes == tape.highest(run(dims)).bytes
        assert len(candidates) < len(formulas)
