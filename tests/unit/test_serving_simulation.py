import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucourse.errors import BadInput
from gpucourse.predict.admission import greedy, reserving
from gpucourse.predict.paging import BlockPool, blocks_for
from gpucourse.predict.requests import Request, drawn
from gpucourse.predict.served import between, percentile
from gpucourse.predict.simulation import simulate

BLOCKS, SIZE = 12, 4
REQUESTS = st.lists(st.builds(Request, st.integers(0, 40).map(float), st.integers(1, 30), st.integers(1, 18)),
                    min_size=1, max_size=25)
BATCHES = st.integers(1, 8)


def prefill(tokens):
    return 1.0 * tokens


def decode(count):
    return 1.0 + count


def test_three_requests_worked_by_hand():
    # Prefill 1 s a token, decode 1 s and 1 s a request, two at once.
    #  0 … 2  prefill of A (2 tokens): A has 1 of 3. B (arrived at 1) is let in.
    #  2 … 5  prefill of B (3 tokens): B has 1 of 2. C (arrived at 4) waits: both places are taken.
    #  5 … 8  decode of A and B (1 + 2 s): A has 2 of 3, B its 2 of 2 and leaves.
    #  8 … 9  prefill of C (1 token): its one token is its answer, and it leaves.
    #  9 … 11 decode of A alone (1 + 1 s): 3 of 3.
    a, b, c = Request(0, 2, 3), Request(1, 3, 2), Request(4, 1, 1)
    run = simulate((c, a, b), prefill, decode, batch=2, blocks=100)
    assert {one.request: (one.first, one.end) for one in run.served} == {a: (2, 11), b: (5, 8), c: (9, 9)}
    assert sorted(one.latency for one in run.served) == [5, 7, 11]
    assert [run.at("latency", p) for p in (50, 95, 99)] == [7, 11, 11]
    assert [run.at("wait", p) for p in (50, 95, 99)] == [4, 5, 5]
    assert [run.at("pace", p) for p in (50, 95, 99)] == [3, 4.5, 4.5]
    assert run.tokens_per_second == 6 / 11


def test_a_pre_emption_worked_by_hand():
    # Blocks of 2 tokens, four of them. A and B arrive together, 2 tokens and an answer of 4 each.
    #  0 … 4  prefill of both (4 tokens): each holds 3 tokens, 2 blocks; none is free. Each has 1 of 4.
    #  4 … 7  decode: the fourth token of each fits its second block. 2 of 4.
    #  7 … 9  A's fifth needs a block: B, which started last, loses its two. A alone (1 + 1 s): 3 of 4, holds 5.
    #  9 … 11 decode of A: 4 of 4, leaves. (B needs 3 blocks for 2 + 2 + 1 tokens and one is free: it waits.)
    # 11 … 15 prefill of B again, 2 + 2 tokens: 3 of 4. 15 … 17 decode: 4 of 4.
    a, b = Request(0, 2, 4), Request(0, 2, 4)
    run = simulate((a, b), prefill, decode, batch=2, blocks=4, block_size=2)
    assert [(one.first, one.end, one.preempted) for one in run.served] == [(4, 11, 0), (4, 17, 1)]
    assert (run.preemptions, run.computed_again) == (1, 4)
    calm = simulate((a, b), prefill, decode, batch=2, blocks=4, block_size=2, admit=reserving)
    assert (calm.preemptions, calm.computed_again) == (0, 0)
    assert [(one.first, one.end) for one in calm.served] == [(2, 8), (10, 16)]


def test_a_static_batch_waits_for_its_longest():
    requests = [Request(0, 1, 1), Request(0, 1, 9), Request(0, 1, 1)]
    full = simulate(requests, prefill, decode, batch=2, blocks=100)
    static = simulate(requests, prefill, decode, batch=2, blocks=100, refill=False)
    assert max(one.wait for one in full.served) == 3      # the prefill of two, then the third's
    assert max(one.wait for one in static.served) == 2 + 8 * 2 + 1


@settings(deadline=None)
@given(REQUESTS, BATCHES, st.sampled_from([greedy, reserving]), st.booleans())
def test_every_request_is_served_once_in_full_within_the_cache(requests, batch, admit, refill):
    run = simulate(requests, prefill, decode, batch, BLOCKS, SIZE, admit, refill)
    assert sorted(map(repr, (one.request for one in run.served))) == sorted(map(repr, requests))
    for one in run.served:
        assert one.request.arrival + one.request.prompt <= one.first <= one.end
        assert one.end - one.first >= 2 * (one.request.answer - 1)
    assert all(turn.running <= batch and turn.blocks <= BLOCKS for turn in run.turns)
    assert all(before.end <= after.begin for before, after in zip(run.turns, run.turns[1:], strict=False))
    gained = sum(turn.running for turn in run.turns if not turn.prefilled)
    started = len(requests) + run.preemptions  # each start gains a token too, and each pre-emption is a start more
    assert gained + started == sum(request.answer for request in requests)
    assert run.preemptions == sum(one.preempted for one in run.served)
    assert (run.computed_again > 0) == (run.preemptions > 0)


@settings(deadline=None)
@given(REQUESTS, BATCHES)
def test_who_reserves_the_full_length_is_never_pre_empted(requests, batch):
    assert simulate(requests, prefill, decode, batch, BLOCKS, SIZE, reserving).preemptions == 0


OPERATIONS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60)  # sequence; tokens, 0 releases


@given(st.integers(1, 30), st.integers(1, 32), OPERATIONS)
def test_a_sequence_wastes_less_than_a_block(count, block_size, operations):
    pool, lengths = BlockPool(count, block_size), {}
    for sequence, tokens in operations:
        if tokens and pool.grow(sequence, tokens):
            lengths[sequence] = lengths.get(sequence, 0) + tokens
        elif tokens:
            missing = blocks_for(lengths.get(sequence, 0) + tokens, block_size) - len(pool.tables.get(sequence, []))
            assert missing > len(pool.free)  # it refuses only what does not fit
        elif sequence in lengths:
            pool.release(sequence)
            del lengths[sequence]
        assert pool.lengths == lengths
        for held, table in pool.tables.items():
            assert 0 <= len(table) * block_size - lengths[held] < block_size
        assert 0 <= pool.wasted <= len(lengths) * (block_size - 1)
        taken = [block for table in pool.tables.values() for block in table]
        assert sorted(taken + pool.free) == list(range(count))  # each block once


def test_a_refused_growth_takes_nothing_and_a_release_is_made_once():
    pool = BlockPool(2, 4)
    assert pool.grow("a", 5) and not pool.grow("a", 4) and pool.lengths == {"a": 5}
    pool.release("a")
    assert len(pool.free) == 2
    with pytest.raises(BadInput, match="'a' holds no blocks"):
        pool.release("a")


def test_drawn_requests_keep_to_their_ends_and_rate():
    requests = drawn(2000, 4.0, (3, 9), (1, 5), seed=1)
    assert requests == drawn(2000, 4.0, (3, 9), (1, 5), seed=1) != drawn(2000, 4.0, (3, 9), (1, 5), seed=2)
    assert {r.prompt for r in requests} == set(range(3, 10)) and {r.answer for r in requests} == set(range(1, 6))
    assert requests[0].arrival == 0
    assert 2000 / requests[-1].arrival == pytest.approx(4.0, rel=0.1)


def test_a_percentile_is_a_value_that_occurred():
    assert [percentile([5, 1, 4, 2, 3], p) for p in (1, 20, 21, 50, 99, 100)] == [1, 1, 2, 3, 5, 5]
    assert percentile(range(1, 101), 99) == 99


def test_seconds_between_measured_points():
    seconds = between({4: 2.0, 1: 1.0, 8: 4.0})
    assert [seconds(n) for n in (1, 2, 4, 6, 8, 10)] == [1.0, pytest.approx(4 / 3), 2.0, 3.0, 4.0, 5.0]
    noisy = between({2: 3.0, 4: 2.0, 8: 5.0})
    assert [noisy(n) for n in (1, 3, 4, 8)] == [3.0, 3.0, 3.0, 5.0]


@pytest.mark.parametrize(("call", "says"), [
    (lambda: Request(0, 0, 1), "prompt is 0"),
    (lambda: Request(0, 1, -1), "answer is -1"),
    (lambda: Request(float("nan"), 1, 1), "arrival is nan"),
    (lambda: drawn(0, 1.0, (1, 2), (1, 2)), "requests is 0"),
    (lambda: drawn(1, 0, (1, 2), (1, 2)), "rate is 0"),
    (lambda: BlockPool(0), "blocks is 0"),
    (lambda: BlockPool(4).grow("a", 0), "tokens is 0"),
    (lambda: percentile([], 50), "percentile 50 of 0 values"),
    (lambda: percentile([1.0], 0), "0 < percent"),
    (lambda: between({}), "no points"),
    (lambda: simulate([Request(0, 1, 1)], prefill, decode, 0, 4), "batch is 0"),
    (lambda: simulate([Request(0, 9, 8)], prefill, decode, 1, 4, 4), "needs 5 blocks; the cache has 4"),
    (lambda: simulate([Request(0, 1, 1)], prefill, decode, 1, 4, admit=lambda *_: 0), "admits nobody"),
    (lambda: simulate([Request(0, 9, 1)] * 3, prefill, decode, 9, 4, 4, admit=lambda w, *_: len(w)),
     "admits more requests than there are free blocks"),
])
def test_values_that_cannot_be_used(call, says):
    with pytest.raises(BadInput, match=says):
        call()
