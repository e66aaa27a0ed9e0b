"""Our transformer on several ranks, with torch's own tools: which module is divided how.

Data parallel with sharded weights (`fully_shard`) makes one unit of each block and one of all the rest. Tensor parallel
(`parallelize_module`) is Megatron's plan: each half of a block begins divided by columns and ends divided by rows, so
that it needs one collective forward and one backward; sequence parallel divides what lies between the halves too.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from gpucourse.catalog import Job, Layout, Shape
from gpucourse.catalog.divides import must_divide
from gpucourse.catalog.stages import Part
from gpucourse.models.divided_lora import by_inputs, by_outputs
from gpucourse.models.lora import Adapted
from gpucourse.models.training import LOW, network
from gpucourse.models.transformer import Transformer


def laid_out(shape: Shape, job: Job, device: str = "cpu", part: Part | None = None) -> Transformer:
    """The model of this process's rank: first each tensor is divided, then what is left of it among the copies."""
    must_divide(shape, job)
    layout, model = job.layout, network(shape, job, device, part)
    sizes = (layout.pp, layout.dp, layout.tp)
    # DTensor remembers what it did by mesh, and a later layout may have an equal one that means other groups: its name
    # tells them apart.
    names = tuple(f"{axis} of {sizes}" for axis in ("pp", "dp", "tp"))
    axes = init_device_mesh("cpu" if device == "meta" else torch.device(device).type, sizes, mesh_dim_names=names)
    if layout.tp > 1:
        divide(model, layout, axes[names[2]])
    if layout.shard == "zero3":
        shard(model, job, axes[names[1]])
    return model


def shard(model: Transformer, job: Job, ranks: DeviceMesh) -> None:
    """fully_shard: 16-bit compute on fp32 shards comes from its own policy, in place of autocast."""
    low = LOW.get(job.precision)
    inside = outside = MixedPrecisionPolicy()
    if low:
        inside = MixedPrecisionPolicy(low, torch.float32, cast_forward_inputs=False)
        outside = replace(inside, output_dtype=torch.float32) if model.part.last else inside  # the loss wants fp32
    for block in model.blocks:
        fully_shard(block, mesh=ranks, mp_policy=inside, reshard_after_forward=job.layout.reshard == "always")
    fully_shard(model, mesh=ranks, mp_policy=outside)


def divide(model: Transformer, layout: Layout, ranks: DeviceMesh) -> None:
    between = Shard(1) if layout.sequence_parallel else Replicate()  # the residual stream [B, T, H]
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    parallelize_module(model, ranks, ends(model, layout, between))
    for block in model.blocks:
        parallelize_module(block, ranks, of_block(block, layout, between))
    model.tie()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)  # SequenceParallel makes a norm's anew


def ends(model: Transformer, layout: Layout, between) -> dict:
    """Embeddings and head: the vocabulary is divided."""
    logits = Shard(-1) if layout.vocab_parallel_loss else Replicate()
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, output_layouts=logits,
                                    use_local_output=not layout.vocab_parallel_loss)}
    if layout.sequence_parallel:
        plan["norm"] = SequenceParallel()
        plan["positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    return {name: style for name, style in plan.items() if getattr(model, name) is not None}


def of_block(block: nn.Module, layout: Layout, between) -> dict:
    begins = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    attention_begins = PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(Replicate(), None))
    plan, adapted = {"attention": attention_begins, "mlp": begins}, isinstance(block.attention.q, Adapted)
    for module in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"):
        if module != "mlp.gate" or hasattr(block.mlp, "gate"):
            plan |= by_outputs(module) if adapted else {module: ColwiseParallel()}
    if block.attention.q_norm is not None:  # a rank's heads lie along dimension 2 of [B, T, A/t, D]
        plan |= dict.fromkeys(("attention.q_norm", "attention.k_norm"),
                              SequenceParallel(sequence_dim=2, use_local_output=True))
    for module in ("attention.out", "mlp.down"):
        plan |= by_inputs(module, between) if adapted else {module: RowwiseParallel(output_layouts=between)}
    if layout.sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    return plan
