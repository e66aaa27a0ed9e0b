"""Context parallelism in the closed form: what is divided, what is not, and the ring's buffers by hand."""

import pytest

from gpucourse import dryrun, predict
from gpucourse.catalog import Job, Layout, llama, shape
from gpucourse.errors import BadInput
from gpucourse.predict import ring
from gpucourse.predict.step import Step

SMALL = llama("llama", 3, 64, 4, 2, 176, vocab=1000, context=256)
PRECISIONS = ("fp32", "bf16", "bf16-autocast")


def sizes(model, job) -> dict[str, int]:
    return {line.name: line.bytes for line in predict.memory(model, job).lines}


@pytest.mark.parametrize("ranks", (2, 4))
@pytest.mark.parametrize("precision", ("fp32", "bf16"))
def test_what_each_token_leaves_is_divided_to_the_byte(precision, ranks):
    job = Job(2, 256, precision)
    whole, divided = sizes(SMALL, job), sizes(SMALL, job.but(layout=Layout(cp=ranks)))
    for name in ("saved by the blocks", "saved by the head", "batch"):
        assert divided[name] * ranks == whole[name]


def test_it_is_the_tokens_that_are_divided():
    long, short = Job(2, 256, layout=Layout(cp=4)), Job(2, 64)
    assert Step(SMALL, long).blocks[0].kept.at(Step(SMALL, long).dims) == \
        Step(SMALL, short).blocks[0].kept.at(Step(SMALL, short).dims)


@pytest.mark.parametrize("shard", ("zero1", "zero2", "zero3"))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_states_are_shared_among_all_ranks_that_have_the_same_weights(precision, shard):
    job = Job(1, 256, precision)
    product, alone = (predict.memory(SMALL, job.but(layout=Layout(dp=dp, cp=cp, shard=shard))).states()
                      for dp, cp in ((2, 4), (8, 1)))
    assert product == alone


def test_the_rings_buffers_by_hand():
    # 50 tokens a rank on 4 ranks, heads 4 × 16, of K and V 2 × 16; bf16
    dims = dict(n=50, q=64, k=32, a=4)
    gathered = 4 * 2 * (50 * 32) * 2  # ranks × (K and V) × elements × bytes
    sums, block, difference, added = 4 * (4 * 50 * 64,)
    result, logsumexps = 2 * 50 * 64, 3 * 4 * 50 * 4
    kept = result + 4 * 50 * 4
    forward = ring.forward_work(4, 2, "q", "k", "a").at(dims)
    assert forward + kept == gathered + sums + block + difference + added + result + logsumexps

    sum_of_q, rounds = 4 * 50 * 64, 3 * (2 * 4 * 50 * 32)  # K's and V's sums: kept, sent and received
    before = 2 * 50 * 64 + 2 * (2 * 50 * 32)  # the gradients of the block before
    backward = ring.backward_work(4, 2, "q", "k", grouped=True).at(dims)
    assert backward == gathered + sum_of_q + rounds + before
    assert ring.backward_work(4, 2, "k", "k", grouped=False).at(dims) == gathered + 4 * 50 * 32 + 4 * (2 * 4 * 50 * 32)


def test_attention_is_the_highest_operation_of_a_narrow_mlp_and_says_what_it_rests_on():
    model = SMALL.but(ffn=8)
    alone, divided = (predict.memory(model, Job(1, 64 * n, layout=Layout(cp=n))) for n in (1, 4))
    line = next(line for line in divided.lines if line.name == "one block, backward")
    assert "at ring attention" in line.formula and "arXiv 2310.01889" in line.source
    assert not any("arXiv 2310.01889" in line.source for line in alone.lines)
    # the same tokens a rank: blocks keep the same, and the ring comes on top
    assert divided.total("last block") > alone.total("last block")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_ranks_along_the_sequence_never_keep_more(precision):
    peaks = [predict.memory(shape("llama-3.1-8b"), Job(1, 131072, precision, layout=Layout(cp=cp))).peak
             for cp in (1, 2, 4, 8, 16)]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 5


def test_a_sequence_that_does_not_divide_is_refused():
    for seq, cp in ((4, 8), (100, 8)):
        with pytest.raises(BadInput, match=f"cp is {cp}; the job has {seq} tokens of a sequence"):
            predict.memory(SMALL, Job(1, seq, layout=Layout(cp=cp)))
    with pytest.raises(BadInput, match="tp with sequence-parallel is 4; the job has 2 tokens"):
        predict.memory(SMALL.but(kv_heads=4), Job(1, 8, layout=Layout(tp=4, sequence_parallel=True, cp=4)))
    with pytest.raises(BadInput, match="cp has no dry run"):
        dryrun.memory(SMALL, Job(1, 64, layout=Layout(cp=2)))
