"""What torch's pipeline does with stages whose weights are sharded. Private API, which a real stage needs neighbours
for: this is its one wrapper."""

from collections.abc import Iterable
from types import SimpleNamespace

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

from gpucourse.predict.actions import Action
from gpucourse.predict.schedules import SCHEDULES

KINDS = {"F": schedules.FORWARD, "B": schedules.FULL_BACKWARD, "I": schedules.BACKWARD_INPUT,
         "W": schedules.BACKWARD_WEIGHT}


def hold(model: nn.Module) -> None:
    """Let the next backward keep the weights that it gathers, and its gradients whole, as stages always do."""
    model.set_is_last_backward(False)
    model.set_reshard_after_backward(False)
    model.set_requires_gradient_sync(False)


def gather(model: nn.Module) -> list:
    """Begin to gather all weights of a stage; each handle is to be waited for."""
    return [module.unshard(async_op=True) for module in model.modules() if isinstance(module, FSDPModule)]


def give_back(model: nn.Module) -> tuple:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return ()


def share_out(model: nn.Module) -> tuple:
    """Give the weights back and share the gradients out."""
    _PipelineStageBase.perform_reduce_grad(SimpleNamespace(submod=model), 1)
    return ()


DOES = {schedules.UNSHARD: gather, schedules.RESHARD: give_back, schedules.REDUCE_GRAD: share_out}


def with_sharding(actions: Iterable[Action], micro_batches: int, schedule: str) -> list[tuple[str, int, int | None]]:
    """A rank's actions as (kind, stage, micro-batch), and between them where stages of several a rank are gathered,
    given back and share their gradients out."""
    names = {kind: name for name, kind in KINDS.items()}
    plain = [schedules._Action(stage, KINDS[kind], i) for kind, stage, i in actions]
    gathered = plain if SCHEDULES[schedule].alone else schedules._add_unshard_reshard(plain)
    lowered = schedules._add_reduce_grad(gathered, micro_batches)
    return [(names.get(a.computation_type, a.computation_type), a.stage_index, a.microbatch_index) for a in lowered]
