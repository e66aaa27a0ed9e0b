import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucourse.catalog.cluster import cluster
from gpucourse.catalog.gpus import gpu, gpus
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.links import link
from gpucourse.catalog.models import shape
from gpucourse.errors import BadInput
from gpucourse.evidence import compare
from gpucourse.predict.compute import flops_per_token, hardware_flops_per_token
from gpucourse.predict.layout_traffic import over, stage_elements, step_traffic
from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.predict.plan import bubble, plan, share
from gpucourse.predict.schedules import schedule
from gpucourse.predict.timeline import timeline
from gpucourse.predict.traffic import sent

LLAMA, MIXTRAL = shape("llama-3.1-8b"), shape("mixtral-8x7b")
P = 8_030_261_248
SHARDED = dict(shard="zero3")
JOB = Job(1, 8192, precision="bf16-autocast", recompute="full")


def laid_out(job=JOB, **layout):
    return job.but(layout=Layout(**layout))


def by_axis(model, job):
    found = {}
    for transfer in step_traffic(model, job):
        found[transfer.axis] = found.get(transfer.axis, 0) + transfer.sent
    return found


# the cluster

@pytest.mark.parametrize("name", gpus())
def test_the_link_within_a_node_is_the_card_s_own(name):
    card = gpu(name)
    assert link(card.link).bandwidth == 1e9 * (card.nvlink_gb_s or card.pcie_gb_s)


def test_a_group_stays_inside_or_takes_the_network():
    there = cluster("h100-sxm", 64, 8, "ib-400")
    assert there.link("all-reduce", 1, 8).name == "nvlink4"
    assert there.link("all-reduce", 8, 8).name == "ib-400"  # one rank a node
    assert there.link("all-reduce", 1, 3).name != "nvlink4"  # groups of three do not fill a node of eight
    assert cluster("h100-sxm", 8).link("all-reduce", 1, 8).name == "nvlink4"


def test_ranks_of_one_node_share_its_network_ports():
    there = cluster("h100-sxm", 64, 8, "ib-400")
    assert there.link("all-reduce", 1, 64).bandwidth == 8 * 50e9
    assert there.link("all-reduce", 2, 32).bandwidth == 4 * 50e9
    assert there.link("all-to-all", 1, 64).bandwidth == there.link("send", 1, 64).bandwidth == 50e9
    assert cluster("h100-sxm", 64, 8, "ib-800").link("all-reduce", 1, 64).bandwidth == 450e9  # no faster than NVLink


def test_a_rack_is_one_domain_however_small_its_nodes():
    assert cluster("gb200", 64, 4).link("all-reduce", 1, 64).name == "nvlink5-72"
    assert cluster("h100-sxm", 4, 4).domain == 4
    assert str(cluster("h100-sxm", 16, 4, "ib-400")) == "16 × h100-sxm, nvlink4 within 4, ib-400 between"


@pytest.mark.parametrize(("arguments", "message"), [
    (("h100-sxm", 64, 8), "64 GPUs are more than the 8 that nvlink4 joins here; name the network"),
    (("h100-sxm", 0), "gpus is 0"), (("h100-sxm", 8, -1), "gpus-per-node is -1"),
    (("h100", 8), "did you mean h100-sxm"), (("h100-sxm", 16, 8, "ib-4"), "link 'ib-4' is not known"),
    (("h100-sxm", float("nan")), "gpus is nan"),
])
def test_clusters_that_cannot_be(arguments, message):
    with pytest.raises(BadInput, match=message):
        cluster(*arguments)


# traffic of a layout

def test_fsdp_gathers_twice_in_16_bit_and_reduces_in_32():
    assert by_axis(LLAMA, laid_out(dp=8, **SHARDED)) == {"data": pytest.approx((2 + 2 + 4) * 7 / 8 * P)}
    assert by_axis(LLAMA, laid_out(dp=8, reshard="never", **SHARDED))["data"] == pytest.approx((2 + 4) * 7 / 8 * P)
    twice = laid_out(JOB.but(accumulate=2), dp=8, **SHARDED)
    assert by_axis(LLAMA, twice)["data"] == pytest.approx(2 * (2 + 2 + 4) * 7 / 8 * P)


def test_ddp_reduces_gradients_once_a_step():
    assert by_axis(LLAMA, laid_out(JOB.but(accumulate=4), dp=8))["data"] == pytest.approx(2 * 4 * 7 / 8 * P)


def test_recomputing_repeats_the_collectives_of_forward():
    split = dict(tp=8, sequence_parallel=True, vocab_parallel_loss=True)
    full, op, none = (by_axis(LLAMA, laid_out(JOB.but(recompute=r), **split))["tensor"] for r in ("full", "op", "none"))
    assert none == pytest.approx(32 * 8 * 2 * 8192 * 4096 * 7 / 8)
    assert full == op == pytest.approx(11 / 8 * none)  # two gathers and a reduce-scatter: the second is not needed


def test_a_whole_loss_gathers_the_logits():
    split, whole = (sent(step_traffic(LLAMA, laid_out(tp=8, vocab_parallel_loss=v))) for v in (True, False))
    assert whole - split == pytest.approx(2 * 8192 * 128_256 * 7 / 8)


def test_stages_and_tensor_ranks_divide_what_data_parallelism_reduces():
    common, experts = stage_elements(LLAMA, Layout(tp=4, pp=4))
    assert experts == 0
    assert common == (parameters(LLAMA).blocks // 4 + 128_256 * 4096 + 4096) // 4
    assert stage_elements(LLAMA, Layout()) == (P, 0)


def test_experts_are_reduced_among_those_who_hold_the_same():
    common, experts = stage_elements(MIXTRAL, Layout(dp=16, ep=8))
    assert common + 8 * experts == parameters(MIXTRAL).total
    job = laid_out(Job(1, 4096, precision="bf16-autocast"), dp=16, ep=8)
    pairs = {t.ranks: t for t in step_traffic(MIXTRAL, job) if t.axis == "data"}
    assert pairs[2].size * pairs[2].calls == pytest.approx(4 * experts)
    there = cluster("h100-sxm", 16, 8, "ib-400")
    assert {t.ranks: where.name for t, where in over(there, job.layout, list(pairs.values()))}[2] == "ib-400"


def test_neighbours_are_tensor_parallel_and_stages_are_far_apart():
    there = cluster("h100-sxm", 64, 8, "ib-400")
    job = laid_out(JOB.but(accumulate=8), dp=4, tp=8, pp=2, sequence_parallel=True, **SHARDED)
    names = {t.axis: where.name for t, where in over(there, job.layout, step_traffic(LLAMA, job))}
    assert names == {"tensor": "nvlink4", "data": "ib-400", "pipeline": "ib-400"}


def test_one_rank_sends_nothing():
    assert step_traffic(LLAMA, JOB) == []


# time of a layout

@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble"])
def test_the_bubble_is_the_one_that_the_schedule_plays_out(name):
    job = laid_out(JOB.but(accumulate=16), pp=4, schedule=name)
    assert bubble(job) == pytest.approx(timeline(schedule(name, 4, 16)).bubble)


def test_interleaving_divides_the_bubble():
    job = laid_out(JOB.but(accumulate=16), pp=4, schedule="interleaved", chunks=2)
    assert bubble(job) == pytest.approx(timeline(schedule("interleaved", 4, 16, 2)).bubble) == pytest.approx(3 / 35)


def test_the_slowest_stage_has_the_head():
    assert share(LLAMA, laid_out(tp=8, cp=2)) == 1 / 16
    head = parameters(LLAMA).head / P
    assert share(LLAMA, laid_out(pp=4)) == pytest.approx((1 - head) / 4 + head)


def test_a_plan_on_one_gpu_is_its_parts():
    found = plan(LLAMA, JOB.but(precision="bf16"), cluster("h200"))
    low, high = found.time.seconds
    work = 8192 * hardware_flops_per_token(LLAMA, 8192, "no-embedding", "full").total
    assert (low, high) == pytest.approx((work / (found.flops * 0.9), work / (found.flops * 0.45)))
    assert found.tokens_per_second_per_gpu == pytest.approx((8192 / high, 8192 / low))
    assert found.mfu[1] == pytest.approx(8192 / low * flops_per_token(LLAMA, 8192).total / 989e12)
    assert (found.bubble, found.carried, found.fits) == (0.0, (), "yes")
    assert [f.name for f in found.readings().figures][-1] == "step"


def test_a_measured_ceiling_takes_the_table_s_place():
    slow, fast = (plan(LLAMA, JOB, cluster("h200"), flops=f).time.seconds for f in (1e14, 2e14))
    assert slow == pytest.approx([2 * seconds for seconds in fast])


@pytest.mark.parametrize(("change", "layout", "message"), [
    ({}, dict(dp=16), "16 ranks; there are 8 GPUs"),
    ({}, dict(tp=5), "tp is 5; llama-3.1-8b has 32 heads"),
    ({}, dict(dp=2, tp=8), "16 ranks; there are 8"),
    ({"seq": 4}, dict(cp=8), "cp is 8; the job has 4 tokens of a sequence"),
    ({}, dict(ep=2, dp=2), "ep is 2; llama-3.1-8b has 0 experts"),
    ({"accumulate": 1}, dict(pp=8, schedule="zero-bubble"), "needs at least 8"),
    ({"accumulate": 4}, dict(pp=8, schedule="interleaved", chunks=8), "64 stages; llama-3.1-8b has 32 layers"),
])
def test_layouts_that_cannot_be(change, layout, message):
    with pytest.raises(BadInput, match=message):
        plan(LLAMA, laid_out(JOB.but(**change), **layout), cluster("h100-sxm", 8))


def test_experts_that_do_not_divide():
    with pytest.raises(BadInput, match="ep is 3; mixtral-8x7b has 8 experts"):
        plan(MIXTRAL, laid_out(Job(1, 4096), dp=3, ep=3), cluster("h100-sxm", 8))


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from(["none", "zero1", "zero2", "zero3"]))
def test_more_replicas_never_send_less(ranks, shard):
    few, many = (sent(step_traffic(LLAMA, laid_out(dp=n, shard=shard))) for n in (2 * ranks, 4 * ranks))
    assert few <= many


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_axes_divide_the_work_and_leave_no_more_than_all_of_it(tp, pp, cp):
    part = share(LLAMA, laid_out(JOB.but(accumulate=8), tp=tp, pp=pp, cp=cp))
    assert 1 / (tp * pp * cp) <= part <= 1 / (tp * cp)


# what is left over

def test_a_residual_as_large_as_a_line_names_it():
    model, job = shape("gpt2"), Job(8, 1024, optimizer="momentum")
    text = compare(memory(model, job), memory(model, job.but(optimizer="sgd"))).explained()
    assert text.startswith("optimizer: -") and text.endswith(", as much as optimizer moments")


def test_a_residual_of_another_size_names_the_largest_line():
    model, job = shape("gpt2"), Job(8, 1024)
    text = compare(memory(model, job), memory(model, job.but(micro_batch=7))).explained()
    assert text.startswith("activations and temporaries: -") and text.endswith("; largest line: saved by the blocks")


# the host

def test_offload_takes_gradients_to_the_host_and_weights_back():
    here = cluster("h100-sxm")
    apart, kept = (plan(LLAMA, JOB.but(micro_batch=1, seq=512, offload=off), here) for off in (True, False))
    there, back = ((t.size, t.behind, link) for t, link in apart.carried)
    assert there[:2] == (4 * P, "backward") and back[:2] == (4 * P, "")
    assert there[2].bandwidth == here.gpu.pcie_gb_s * 1e9 and kept.carried == ()
    one_way = 4 * P / there[2].bandwidth
    low, high = (a - b for a, b in zip(apart.time.seconds, kept.time.seconds, strict=True))
    assert one_way < low < high == pytest.approx(2 * one_way)


@pytest.mark.parametrize("layout, share", ((dict(dp=8), 1), (dict(dp=8, shard="zero1"), 8),
                                           (dict(dp=8, shard="zero3"), 8), (dict(dp=8, shard="zero3", tp=2), 16)))
def test_each_rank_copies_what_its_optimizer_steps(layout, share):
    copies = [t for t in step_traffic(LLAMA, laid_out(JOB.but(offload=True), **layout)) if t.axis == "host"]
    assert [t.sent for t in copies] == pytest.approx([4 * P / share] * 2, rel=1e-6)


def test_of_a_frozen_model_only_adapters_are_copied():
    h, k, f = LLAMA.hidden, LLAMA.kv_hidden, LLAMA.ffn
    copies = step_traffic(LLAMA, Job(1, 512, "bf16", lora=16, offload=True))
    assert [t.size for t in copies] == [2 * 32 * 16 * (4 * h + 2 * (h + k) + 3 * (h + f))] * 2


@pytest.mark.parametrize("shard, gathered", (("none", 0), ("zero1", 0), ("zero3", 2)))
def test_of_a_frozen_model_only_adapters_are_reduced(shard, gathered):
    """In bytes an element, of what seven of eight ranks send: all weights are gathered, adapters' gradients reduced."""
    trained = 32 * 16 * (4 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    found = sent(step_traffic(LLAMA, laid_out(Job(1, 512, "bf16", lora=16), dp=8, shard=shard)))
    reduced = {"none": 2 * 2, "zero1": 2 + 2, "zero3": 2}[shard] * trained
    assert found == pytest.approx(7 / 8 * (2 * gathered * (P + trained) + reduced))
