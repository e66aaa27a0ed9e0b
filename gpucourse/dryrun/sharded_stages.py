"""What torch's pipeline does with a stage whose weights are sharded, before each backward and after the last one."""

from types import SimpleNamespace

from torch import nn


def hold(model: nn.Module) -> None:
    """Let the next backward keep the weights that it gathers, and its gradients whole, as stages always do."""
    model.set_is_last_backward(False)
    model.set_reshard_after_backward(False)
    model.set_requires_gradient_sync(False)


def share_out(model: nn.Module) -> None:
    """Give the weights back and share the gradients out. Private API, which a real stage needs neighbours for: this is
    its one wrapper."""
    from torch.distributed.pipelining.stage import _PipelineStageBase

    _PipelineStageBase.perform_reduce_grad(SimpleNamespace(submod=model), 1)
