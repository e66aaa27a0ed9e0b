"""The ledger of live storages, and the budget that refuses."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpucourse.catalog import MiB
from gpucourse.errors import BadInput, BudgetExceeded
from gpucourse.measure import LiveStorages, budget


def network(width=64, depth=3, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def train(model, optimizer, data):
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_counts_a_storage_once_and_until_it_dies():
    with LiveStorages() as ledger:
        a = torch.zeros(1000)
        view = a[10:20].reshape(2, 5)
        assert ledger.live == 4000
        b = a + 1
        assert ledger.live == 8000
        del a
        assert ledger.live == 8000  # the view keeps the storage
        del view
        assert ledger.live == 4000
        del b
    assert (ledger.live, ledger.peak) == (0, 8000)


def test_follows_a_storage_that_is_resized():
    with LiveStorages() as ledger:
        a = torch.zeros(1000)
        a.untyped_storage().resize_(0)
        assert ledger.live == 0
        a.untyped_storage().resize_(4000)
        assert ledger.live == 4000
        a.resize_(3000)
        assert (ledger.live, ledger.peak) == (12000, 12000)
    assert torch.UntypedStorage.resize_ is torch._C.StorageBase.resize_


def test_own_counts_weights_gradients_and_state_by_category():
    model, optimizer = network()
    parameters = sum(p.numel() for p in model.parameters())
    train(model, optimizer, torch.ones(4, 64))
    model(torch.ones(4, 64)).sum().backward()
    ledger = LiveStorages()
    ledger.own(model, optimizer)
    tensors = len(list(model.parameters()))
    assert +ledger.by_tag == {"weights": 4 * parameters, "gradients": 4 * parameters,
                              "optimizer": 8 * parameters + 4 * tensors}
    assert ledger.peak == ledger.live == 16 * parameters + 4 * tensors


def test_tags_new_storages_and_moves_them():
    class ByOperation(LiveStorages):
        def tag(self, func):
            return func.overloadpacket.__name__

    with ByOperation() as ledger:
        a = torch.zeros(10)
        b = a.exp()
        assert ledger.by_tag["exp"] == 40
        ledger.retag(b, "kept")
        assert (ledger.by_tag["exp"], ledger.by_tag["kept"], ledger.live) == (0, 40, 80)


def test_fake_tensors_count_as_real_ones_do():
    def peak():
        model, optimizer = network()
        ledger = LiveStorages()
        ledger.own(model, optimizer)
        with ledger:
            for _ in range(2):
                train(model, optimizer, torch.ones(32, 64))
        return ledger.peak

    real = peak()
    with FakeTensorMode():
        assert peak() == real


def test_counts_through_a_wrapper_subclass():
    from torch.testing._internal.two_tensor import TwoTensor

    with LiveStorages() as ledger:
        pair = TwoTensor(torch.zeros(100), torch.zeros(100))
        result = pair + 1
        assert ledger.live == 1600
        del pair, result
    assert ledger.live == 0


def test_a_sparse_gradient_is_counted():
    table = torch.nn.Embedding(100, 8, sparse=True)
    with LiveStorages() as ledger:
        table(torch.tensor([1, 2])).sum().backward()
        assert ledger.live >= table.weight.grad._values().nbytes > 0


def step_under(limit):
    """Two steps, the second under a budget; the budget."""
    model, optimizer = network()
    data = torch.linspace(0, 1, 256 * 64).reshape(256, 64)
    train(model, optimizer, data)
    with budget(limit, model, optimizer, data) as b:
        train(model, optimizer, data)
    return b


def test_passes_at_the_true_peak_and_raises_one_byte_under():
    peak = step_under(100 * MiB).peak
    assert step_under(peak).peak == peak
    with pytest.raises(BudgetExceeded, match=r"aten\..*, 1 byte over: .* live, the budget is"):
        step_under(peak - 1)


def test_a_refusal_leaves_no_memory_and_the_next_step_is_the_same():
    data = torch.linspace(0, 1, 256 * 64).reshape(256, 64)
    model, optimizer = network()
    with budget(100 * MiB, model, optimizer, data) as probe:
        model(data).square().mean().backward()
    optimizer.zero_grad()
    start = budget(100 * MiB, model, optimizer, data).live
    for limit in range(start + 1, probe.peak, (probe.peak - start) // 6):
        optimizer.zero_grad()
        with pytest.raises(BudgetExceeded) as refused, budget(limit, model, optimizer, data) as b:
            model(data).square().mean().backward()
        del refused
        gc.collect()
        optimizer.zero_grad()
        assert b.live == start
    train(model, optimizer, data)
    fresh, its_optimizer = network()
    train(fresh, its_optimizer, data)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), fresh.parameters(), strict=True))


def test_the_refused_result_is_not_kept_by_the_traceback():
    seen = []

    class Watching(LiveStorages):
        def changed(self):
            if self.live > 1000:
                raise BudgetExceeded("over")

    def refused():
        with Watching():
            a = torch.zeros(100)
            seen.append(weakref.ref(a))
            torch.zeros(10_000)

    ledger = LiveStorages()
    with pytest.raises(BudgetExceeded) as caught, ledger:
        refused()
    assert ledger.live == 400  # the local variable `a` of a frame in the traceback, and not the refused 40,000 bytes
    assert seen[0]() is not None
    del caught


def test_what_exists_already_is_refused_when_it_does_not_fit():
    model, _ = network()
    with pytest.raises(BudgetExceeded, match="what existed before"):
        budget(100, model)


def test_a_budget_says_whether_fake_tensors_fit():
    with FakeTensorMode(), pytest.raises(BudgetExceeded), budget(MiB):
        torch.empty(1024, 1024, 1024)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), True, "2 GiB", None])
def test_a_budget_must_be_a_number_of_bytes(limit):
    with pytest.raises(BadInput, match="number of bytes"):
        budget(limit)
