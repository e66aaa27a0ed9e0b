import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.links import Link, link
from gpucourse.catalog.models import shape
from gpucourse.errors import BadInput
from gpucourse.predict.traffic import (
    SHARDS,
    behind,
    data_parallel,
    expert_parallel,
    exposed,
    pipeline,
    ring_attention,
    sent,
    tensor_parallel,
    ulysses,
)

LLAMA, MIXTRAL, DEEPSEEK = shape("llama-3.1-8b"), shape("mixtral-8x7b"), shape("deepseek-v3")
P = 8_030_261_248
RANKS = st.integers(1, 1024)


@pytest.mark.parametrize(("shard", "bytes_an_element"), [("none", 2 * 4), ("zero1", 4 + 2), ("zero2", 4 + 2),
                                                         ("zero3", 4 + 4)])
def test_data_parallel_bytes_a_step(shard, bytes_an_element):
    assert sent(data_parallel(P, 8, shard)) == pytest.approx(bytes_an_element * 7 / 8 * P)


def test_what_accumulation_adds_to_data_parallel_traffic():
    once, four = ({shard: sent(data_parallel(P, 8, shard, passes=n)) for shard in SHARDS} for n in (1, 4))
    assert four["none"] == once["none"] and four["zero1"] == once["zero1"]
    assert four["zero2"] == pytest.approx((4 * 4 + 2) * 7 / 8 * P)
    assert four["zero3"] == pytest.approx(4 * once["zero3"])


def test_weights_that_stay_gathered_are_gathered_once():
    assert sent(data_parallel(P, 8, "zero3", gathers=1)) == pytest.approx((2 + 4) * 7 / 8 * P)


@given(st.sampled_from(SHARDS), RANKS, st.integers(1, 64), st.integers(1, 8))
def test_units_change_the_number_of_calls_and_not_the_bytes(shard, ranks, units, passes):
    one, many = (data_parallel(P, ranks, shard, passes=passes, units=n) for n in (1, units))
    assert sent(many) == pytest.approx(sent(one))
    assert sum(t.calls for t in many) == units * sum(t.calls for t in one)


@given(st.sampled_from(SHARDS), RANKS, RANKS)
def test_more_ranks_never_send_less(shard, one, other):
    few, many = (sent(data_parallel(P, n, shard)) for n in sorted((one, other)))
    assert few <= many * (1 + 1e-12)


def test_tensor_parallel_bytes():
    tokens, h, layers = 2 * 8192, 4096, 32
    (reduce,) = tensor_parallel(LLAMA, tokens, 8)
    assert (reduce.size, reduce.calls) == (2 * tokens * h, 4 * layers)
    assert reduce.sent == pytest.approx(4 * layers * 2 * tokens * h * 2 * 7 / 8)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 10**5), st.integers(1, 8))
def test_sequence_parallelism_sends_the_same_bytes(ranks, tokens, passes):
    plain, split = (sent(tensor_parallel(LLAMA, tokens, ranks, sp, passes=passes)) for sp in (False, True))
    assert plain == pytest.approx(split)


def test_pipeline_bytes():
    (send,) = pipeline(LLAMA, 8192, 4, 16)
    assert send.sent == 2 * 16 * 2 * 8192 * 4096
    (more,) = pipeline(LLAMA, 8192, 4, 16, chunks=2)
    assert more.sent == 2 * send.sent


def test_context_parallel_bytes():
    b, s, c, kv, h = 1, 131_072, 8, 1024, 4096
    forward, backward = ring_attention(LLAMA, b, s, c)
    assert forward.sent == pytest.approx(32 * 4 * s * b * kv * (c - 1) / c)
    assert backward.sent == 2 * forward.sent
    (swap,) = ulysses(LLAMA, b, s, c)
    assert swap.sent == pytest.approx(2 * 32 * 2 * (2 * h + 2 * kv) * (s / c) * b * (c - 1) / c)


def test_expert_parallel_bytes():
    tokens, e = 4096, 8
    (swap,) = expert_parallel(MIXTRAL, tokens, e)
    assert swap.sent == pytest.approx(32 * 2 * (2 * 2 * tokens * 4096 * 2 * (e - 1) / e))
    (deep,) = expert_parallel(DEEPSEEK, tokens, 64)
    assert deep.calls == 4 * 58


def test_one_rank_sends_nothing():
    every = [*data_parallel(P, 1), *data_parallel(P, 1, "zero3"), *tensor_parallel(LLAMA, 1024, 1),
             *pipeline(LLAMA, 1024, 1, 8), *ring_attention(LLAMA, 1, 1024, 1), *ulysses(LLAMA, 1, 1024, 1),
             *expert_parallel(MIXTRAL, 1024, 1)]
    assert sent(every) == 0
    assert sum(t.seconds(link("ib-400")) for t in every) == 0


def test_the_time_of_a_gradient_all_reduce():
    (reduce,) = data_parallel(P, 8, units=10)
    wire = Link("wire", 50e9, 10e-6)
    assert reduce.seconds(wire) == pytest.approx(10 * 14 * 10e-6 + 2 * 7 / 8 * 4 * P / 50e9)


def test_what_a_computation_cannot_hide_is_exposed():
    wire = Link("wire", 50e9, 0.0)
    hidden, waiting = ([(t, wire) for t in ts] for ts in (data_parallel(P, 8), tensor_parallel(LLAMA, 8192, 8)))
    long, rest = (ts[0][0].seconds(wire) for ts in (hidden, waiting))
    assert exposed(behind(hidden), {"backward": long / 4}) == pytest.approx(long * 3 / 4)
    assert exposed(behind(hidden), {"backward": 2 * long}) == 0
    assert exposed(behind(hidden + waiting), {"backward": 2 * long}) == pytest.approx(rest)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: data_parallel(P, 8, "zero4"), "shard 'zero4' is not known"),
    (lambda: data_parallel(P, 0), "data-parallel ranks is 0"),
    (lambda: data_parallel(P, 8, passes=0), "passes is 0"),
    (lambda: tensor_parallel(LLAMA, 1024, 3), "tensor parallel is 3"),
    (lambda: tensor_parallel(LLAMA, 0, 2), "tokens is 0"),
    (lambda: pipeline(LLAMA, 1024, 64, 8), "more than llama-3.1-8b's 32 layers"),
    (lambda: ring_attention(LLAMA, 1, 4, 8), "seq 4 does not divide among 8"),
    (lambda: ulysses(LLAMA, 1, 1024, 3), "context parallel is 3"),
    (lambda: expert_parallel(LLAMA, 1024, 8), "has no experts"),
    (lambda: expert_parallel(MIXTRAL, 1024, 3), "8 experts do not divide among 3"),
])
def test_layouts_that_do_not_exist(call, message):
    with pytest.raises(BadInput, match=message):
        call()
