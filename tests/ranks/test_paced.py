"""Over a paced link: the same results, in the time that the link would take.

Times are held against what the link's own two figures say, never against a machine's: least of several repeats, over a
link so slow that gloo's own time is hidden behind it.
"""

import pytest

from gpucourse import ranks
from gpucourse.catalog.links import Link
from gpucourse.catalog.links import link as named_link
from gpucourse.predict import link as links

pytestmark = pytest.mark.usefixtures("loaded")  # what is still loading takes the cores from what is timed
SLOW = Link("slow", bandwidth=20e6, latency=15e-3)
SIZES, HELD_OUT = [2**10, 2**18, 2**19], 2**17


def times(kinds, sizes, repeats):
    """{kind: [least seconds for each size]} on this rank; sizes of whole buffers in bytes."""
    import time
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    rank, n = dist.get_rank(), dist.get_world_size()

    def call(kind, whole, part):
        match kind:
            case "all-reduce":
                dist.all_reduce(whole)
            case "all-gather":
                dist.all_gather_into_tensor(whole, part)
            case "reduce-scatter":
                dist.reduce_scatter_tensor(part, whole)
            case "all-to-all":
                dist.all_to_all_single(torch.empty_like(whole), whole)
            case "broadcast":
                dist.broadcast(whole, 0)
            case "send" if rank == 0:
                dist.send(whole, 1)
            case "send":
                dist.recv(whole, 0)

    def once(kind, size):
        whole, part = torch.ones(size // 4), torch.ones(size // 4 // n)
        dist.barrier()
        begin = time.monotonic()
        call(kind, whole, part)
        return time.monotonic() - begin

    # In rounds, so that a neighbour who keeps the cores for a while meets each size once.
    rounds = [{(kind, size): once(kind, size) for kind in kinds for size in sizes} for _ in range(repeats)]
    return {kind: [min(seen[kind, size] for seen in rounds) for size in sizes] for kind in kinds}


KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send")


def test_a_fit_gives_back_the_link_and_predicts_sizes_that_it_has_not_seen():
    seen = ranks.run(times, 2, KINDS, [*SIZES, HELD_OUT], 8, link=SLOW)[1]  # the rank that receives
    for kind in KINDS:
        fitted = links.fit(kind, 2, SIZES, seen[kind][:-1])
        assert fitted.bandwidth == pytest.approx(SLOW.bandwidth, rel=0.1), kind
        assert fitted.latency == pytest.approx(SLOW.latency, rel=0.1), kind
        assert seen[kind][-1] == pytest.approx(links.seconds(kind, HELD_OUT, 2, fitted), rel=0.1), kind


def test_nothing_is_faster_than_the_link_on_three_ranks():
    size = 3 * 2**16
    for rank in ranks.run(times, 3, KINDS[:4], [size], 2, link=SLOW):
        for kind, (seconds,) in rank.items():
            assert seconds >= links.seconds(kind, size, 3, SLOW) * 0.999, kind


@pytest.mark.parametrize("link", ["0.04:4000", Link("mine", 40e6, 4e-3)])
def test_a_link_is_a_name_or_an_object_and_its_transfers_are_on_the_timeline(link):
    def reduce():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2**16))
        return dist.get_backend()

    results = ranks.run(reduce, 2, link=link)
    assert list(results) == ["paced", "paced"]
    spans = [span for span in results.timeline[0] if span.name == "all-reduce"]
    lasting = links.seconds("all-reduce", 2**18, 2, Link("", 40e6, 4e-3))
    assert [span.row for span in spans] == ["link"]
    assert spans[0].end - spans[0].begin == pytest.approx(lasting)
    assert abs(spans[0].begin - results.timeline[1][0].begin) < 1e-9  # both ranks: when the last one joined


def test_named_links_are_those_of_the_catalogue():
    assert ranks.run(lambda: 1, 1, link="ethernet-10") == [1]
    assert named_link("ethernet-10").bandwidth == 1.25e9


def test_transfers_go_on_while_the_rank_computes():
    def work(overlapped):
        import time

        import torch
        import torch.distributed as dist

        def once():
            begin = time.monotonic()
            work = dist.all_reduce(torch.ones(2**18), async_op=True)  # 82 ms
            if not overlapped:
                work.wait()
            time.sleep(0.08)
            work.wait()
            dist.barrier()
            return time.monotonic() - begin

        return min(once() for _ in range(3))

    apart, together = (max(ranks.run(work, 2, overlapped, link=SLOW)) for overlapped in (False, True))
    assert apart / together > 1.4  # 1.7, without noise: the barrier takes 30 ms more


def test_transfers_of_one_rank_share_its_line():
    """Two all-reduces under way at once take twice as long as one, in one group or in two."""
    def work(two_groups):
        import time

        import torch
        import torch.distributed as dist

        groups = [dist.new_group([0, 1]) for _ in range(2)] if two_groups else [None, None]

        def once(count):
            dist.barrier()
            begin = time.monotonic()
            works = [dist.all_reduce(torch.ones(2**17), group=group, async_op=True) for group in groups[:count]]
            for work in works:
                work.wait()
            return time.monotonic() - begin

        return min(once(2) for _ in range(4)) / min(once(1) for _ in range(4))

    for two_groups in (False, True):
        for ratio in ranks.run(work, 2, two_groups, link=SLOW):
            assert ratio == pytest.approx(2, rel=0.1)


def test_a_message_arrives_a_latency_and_its_bytes_after_it_was_sent_however_early_it_was_awaited():
    def work():
        import time

        import torch
        import torch.distributed as dist

        rank = dist.get_rank()
        delays = []
        for _ in range(4):
            dist.barrier()
            if rank == 0:
                time.sleep(0.05)
                sent = torch.tensor([time.monotonic()], dtype=torch.float64)
                work = dist.isend(torch.ones(2**16), 1)
                dist.send(sent, 1, tag=7)
                work.wait()
            else:
                dist.recv(torch.ones(2**16), 0)
                received = time.monotonic()
                sent = torch.zeros(1, dtype=torch.float64)
                dist.recv(sent, None, tag=7)  # from any rank
                delays.append(received - sent.item())
        return min(delays, default=0)

    assert ranks.run(work, 2, link=SLOW)[1] == pytest.approx(links.seconds("send", 2**18, 2, SLOW), rel=0.1)


def test_messages_that_cross_do_not_wait_for_each_other():
    """The receive is posted first, and only the second message of the other rank lets it go on."""
    def work():
        import torch
        import torch.distributed as dist

        other, got = 1 - dist.get_rank(), torch.zeros(3)
        if dist.get_rank() == 0:
            receiving = dist.irecv(got, other)
            for part in (1.0, 2.0):
                dist.isend(torch.tensor([part]), other).wait()
            receiving.wait()
        else:
            parts = torch.zeros(1), torch.zeros(1)
            for part in parts:
                dist.recv(part, other)
            dist.send(torch.tensor([parts[0].item(), parts[1].item(), 3.0]), other)
        return got.tolist()

    assert ranks.run(work, 2, link="1:100", timeout=20)[0] == [1, 2, 3]


def train(kind):
    """Gradients after one step of the same model on this rank's half of a batch, in double precision."""
    import warnings

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)]).double()
    data = torch.randn(4, 8, dtype=torch.float64).chunk(2)[dist.get_rank()]
    if kind == "ddp":
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
    else:
        for layer in model:
            fully_shard(layer)
        wrapped = fully_shard(model)
    wrapped(data).square().mean().backward()
    full = (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters())
    return torch.cat([grad.flatten() for grad in full])


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_gives_the_same_gradients_as_without_the_link(kind, loaded):
    raw, paced = ranks.run(train, 2, kind), ranks.run(train, 2, kind, link="0.1:100")
    for gradients in (*raw[1:], *paced):
        assert gradients.tolist() == raw[0].tolist()


def test_groups_of_a_mesh_are_paced_too():
    def work():
        import torch
        import torch.distributed as dist

        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        x = torch.full((1,), float(dist.get_rank()))
        dist.all_reduce(x, group=mesh["inner"].get_group())
        objects = [None] * 4
        dist.all_gather_object(objects, x.item())
        return objects

    results = ranks.run(work, 4, link="1:1000")
    assert list(results) == [[1.0, 1.0, 5.0, 5.0]] * 4
    inner = [span for span in results.timeline[0] if span.name == "all-reduce"]
    assert inner[0].end - inner[0].begin == pytest.approx(2e-3, rel=0.01)


def test_a_rank_that_fails_is_named_over_a_link_too():
    def work():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise ValueError("boom")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(ranks.RankError, match="rank 1 raised ValueError: boom") as caught:
        ranks.run(work, 2, link="1:100")
    assert "rank 0 waits in all_reduce at test_paced.py" in str(caught.value)
