"""Memory of a training step by dry run: two shallow models, extrapolated instant by instant to the real depth."""

from gpucourse.catalog import Job, Shape
from gpucourse.catalog.halves import refusal
from gpucourse.catalog.jobs import recompute_every
from gpucourse.dryrun.ledger import step_ledger
from gpucourse.errors import BadInput
from gpucourse.evidence import ALL_INSTANTS, MIDDLE, Memory
from gpucourse.models.instants import MIDDLES

DEPTHS = (4, 5)  # of which both have a first, a second, a last block and one before the last
Table = dict[str, dict[str, int]]  # {instant: {category: bytes}}


def memory(shape: Shape, job: Job, whole: bool = False, rank: int = 0) -> Memory:
    """Bytes by category at each instant of the second step of training `shape` by `job`, on fake CPU tensors.

    A model deeper than DEPTHS is not run: each instant grows by the same amount a layer, so two depths give it exactly,
    while the largest instant may be another one at another depth. `whole` runs all layers all the same: the proof.
    rank: of a pipeline, whose stages are always run whole.
    """
    if refusal(job):
        raise BadInput(refusal(job))
    whole = whole or job.layout.pp > 1
    if whole or shape.layers <= DEPTHS[1] or recompute_every(job.recompute) > 1:
        return Memory(told(run(shape, job, rank), job), "dry run", "cpu, fake tensors", f"{shape.layers} layers run")
    shallow, deep = (run(shape.but(layers=depth), job) for depth in DEPTHS)
    source = f"{DEPTHS[0]} and {DEPTHS[1]} layers run, {shape.layers} extrapolated"
    return Memory(told(extrapolate(shallow, deep, shape.layers), job), "dry run", "cpu, fake tensors", source)


def run(shape: Shape, job: Job, rank: int = 0) -> Table:
    return {instant: dict(categories) for instant, categories in step_ledger(shape, job, rank).at.items()}


def told(table: Table, job: Job) -> Table:
    """The instants by their names; middle blocks only where one of them can hold more than the first and the last."""
    middles = [table[name] for name in MIDDLES if name in table]
    if middles and (job.layout.ranks > 1 or recompute_every(job.recompute) > 1 or job.lora):
        table = table | {MIDDLE: max(middles, key=lambda categories: sum(categories.values()))}
    return {instant: table[instant] for instant in ALL_INSTANTS if instant in table}


def extrapolate(shallow: Table, deep: Table, layers: int) -> Table:
    """Each instant and category on the line through the two depths."""
    beyond = layers - DEPTHS[1]
    return {
        instant: {category: size + beyond * (size - shallow[instant].get(category, 0)) for category, size in at.items()}
        for instant, at in deep.items() if instant in shallow
    }
