"""Whether a layout can divide a model at all, and evenly: heads, widths, layers, experts, sequence."""

from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput


def must_divide(shape: Shape, job: Job) -> None:
    """BadInput for the first part of `shape` that job.layout cannot divide evenly, with what it is and has to be."""
    layout = job.layout
    if job.chunked_loss and layout.sequence_parallel:
        raise BadInput(f"chunked-loss is {job.chunked_loss} with sequence-parallel; a part of the tokens would lie on "
                       "some of the ranks alone: leave one of the two out, or use vocab-parallel-loss instead")
    _even("tp", layout.tp, {"heads": shape.heads, "kv heads": shape.kv_heads, "ffn": shape.ffn}, shape.name)
    if shape.experts:
        _even("tp", layout.tp, {"expert ffn": shape.experts.ffn}, shape.name)
    _even("cp", layout.cp, {"tokens of a sequence": job.seq}, "the job")
    if layout.sequence_parallel:
        _even("tp with sequence-parallel", layout.tp, {"tokens of a sequence": job.seq // layout.cp}, "the job")
    if layout.ep > 1:
        _even("ep", layout.ep, {"experts": shape.experts.count if shape.experts else 0}, shape.name)
    if layout.stages > shape.layers:
        raise BadInput(f"pp {layout.pp} × chunks {layout.chunks} is {layout.stages} stages; {shape.name} has "
                       f"{shape.layers} layers: use at most as many stages")


def uneven(shape: Shape, layout: Layout) -> tuple[str, ...]:
    """What the layout may divide unevenly, and does: a warning each."""
    each, more = divmod(shape.layers, layout.stages)
    if not more:
        return ()
    return (f"{shape.layers} layers on {layout.stages} stages: {more} have {each + 1}, {layout.stages - more} have "
            f"{each} and wait for them; a number of stages that divides the layers has no such wait",)


def _even(axis: str, ranks: int, sizes: dict[str, int], owner: str) -> None:
    for what, size in sizes.items():
        if not size or size % ranks:
            raise BadInput(f"{axis} is {ranks}; {owner} has {size} {what}: use a number that divides them")
