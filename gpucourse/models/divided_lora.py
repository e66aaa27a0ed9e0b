"""Adapters beside matrices that tensor parallelism divides: which of an adapter is divided how.

Beside a matrix divided by its outputs: A is whole on every rank, B divided like the matrix. Beside one divided by its
inputs: A divided like it, B whole; a rank's part of A's result goes through B, is added to the rank's part of the
matrix's own, and all of that is summed over the ranks at once. A whole tensor's gradient is a part of the sum on each
rank, which DTensor adds up when the optimizer asks for it.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle


class Whole(ParallelStyle):
    """A linear layer that every rank has all of, and that every rank gives the same."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class WholeOnParts(ParallelStyle):
    """A linear layer that every rank has all of, and that each gives its own part of a sum.

    To DTensor the parts are different sequences: so none is summed here, and each has a part of the weight's gradient.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, input_fn=self.begin, output_fn=self.end)

    @staticmethod
    def begin(module: nn.Module, inputs: tuple[Tensor], ranks: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], ranks, [Shard(0)], run_check=False)

    @staticmethod
    def end(module: nn.Module, output: DTensor, ranks: DeviceMesh) -> Tensor:
        return output.to_local()


def by_outputs(name: str) -> dict[str, ParallelStyle]:
    """Of an adapted matrix whose outputs are divided: what is given to it is whole, what it gives a rank's part."""
    return {f"{name}.frozen": ColwiseParallel(), f"{name}.a": Whole(), f"{name}.b": ColwiseParallel()}


def by_inputs(name: str, between) -> dict[str, ParallelStyle]:
    """Of an adapted matrix whose inputs are divided. between: how its result is divided once it is summed."""
    part = RowwiseParallel(output_layouts=Partial())
    return {f"{name}.frozen": part, f"{name}.a": part, f"{name}.b": WholeOnParts(),
            name: PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=between)}
