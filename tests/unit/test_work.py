"""The operations of a step, counted on fake tensors: FLOPs against formula and PyTorch, bytes by hand."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from gpucourse.catalog import Job, gpt, llama
from gpucourse.dryrun.work import Operation, operations, step
from gpucourse.predict import parameters

SHAPES = [gpt("a", 3, 96, 4, vocab=300, context=64), gpt("b", 2, 64, 2, vocab=77, context=32, ffn=160),
          llama("c", 2, 64, 4, 2, 112, vocab=90, context=48)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def multiplied(shape):
    """Weights that meet each token in a product: all but norms, biases and what is looked up."""
    matrices = 3 if shape.mlp == "swiglu" else 2
    block = 2 * shape.hidden**2 + 2 * shape.hidden * shape.kv_hidden + matrices * shape.hidden * shape.ffn
    return shape.layers * block + shape.vocab * shape.hidden


def linears(seen):
    return sum(operation.flops for operation in seen if "attention" not in operation.name)


@each_shape
def test_linears_take_six_flops_a_weight_and_token(shape):
    job = Job(micro_batch=2, seq=shape.context)
    assert linears(step(shape, job)) == 6 * multiplied(shape) * job.tokens


@each_shape
def test_attention_takes_two_products_forward_and_five_backward(shape):
    job = Job(micro_batch=2, seq=shape.context)
    found = {}
    for operation in step(shape, job):
        if "attention" in operation.name:
            way = "backward" if "backward" in operation.name else "forward"
            found[way] = found.get(way, 0) + operation.flops
    product = 2 * shape.layers * shape.hidden * job.seq * job.tokens
    assert found == {"forward": 2 * product, "backward": 5 * product}


def test_recomputing_repeats_all_but_the_head_and_each_blocks_last_product():
    shape, job = SHAPES[0], Job(micro_batch=2, seq=32)
    more = linears(step(shape, job.but(recompute="full"))) - linears(step(shape, job))
    last = shape.layers * shape.ffn * shape.hidden + shape.vocab * shape.hidden
    assert more == 2 * (multiplied(shape) - last) * job.tokens


def test_products_are_counted_as_pytorch_counts_them():
    model, x = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Tanh(), torch.nn.Linear(11, 3)), torch.randn(5, 7)

    def run():
        model(x).sum().backward()

    with FlopCounterMode(display=False) as counter:
        run()
    assert sum(operation.flops for operation in operations(run)) == counter.get_total_flops()


def test_bytes_are_of_what_is_read_and_written():
    with FakeTensorMode():
        x, y = torch.empty(10, 20), torch.empty(10, 20)
        assert operations(lambda: x + y) == (Operation("add", 0, 3 * 800),)
        assert operations(lambda: x.add_(y)) == (Operation("add_", 0, 3 * 800),)
        assert operations(lambda: x @ y.T) == (Operation("mm", 2 * 10 * 20 * 10, 800 + 800 + 400),)


def test_a_view_is_no_work():
    with FakeTensorMode():
        x = torch.empty(10, 20)
        assert operations(lambda: x.T.reshape(-1, 10)[1:].unsqueeze(0).detach()) == ()


def test_the_optimizer_moves_each_of_its_lists():
    shape = SHAPES[0]
    lists = [operation for operation in step(shape, Job(1, 8)) if operation.name.startswith("_foreach")]
    assert sum(operation.bytes for operation in lists) > 4 * 4 * parameters(shape).total
