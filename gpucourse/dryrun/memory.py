"""Memory of a training step by dry run: two shallow models, extrapolated instant by instant to the real depth."""

from gpucourse.catalog import Job, Shape
from gpucourse.dryrun.ledger import step_ledger
from gpucourse.evidence import INSTANTS, Memory

DEPTHS = (3, 4)
Table = dict[str, dict[str, int]]  # {instant: {category: bytes}}


def memory(shape: Shape, job: Job, whole: bool = False) -> Memory:
    """Bytes by category at each instant of the second step of training `shape` by `job`, on fake CPU tensors.

    A model deeper than DEPTHS is not run: each instant grows by the same amount a layer, so two depths give it exactly,
    while the largest instant may be another one at another depth. `whole` runs all layers all the same: the proof.
    """
    if whole or shape.layers <= DEPTHS[1]:
        return Memory(run(shape, job), "dry run", "cpu, fake tensors", f"{shape.layers} layers run")
    shallow, deep = (run(shape.but(layers=depth), job) for depth in DEPTHS)
    source = f"{DEPTHS[0]} and {DEPTHS[1]} layers run, {shape.layers} extrapolated"
    return Memory(extrapolate(shallow, deep, shape.layers), "dry run", "cpu, fake tensors", source)


def run(shape: Shape, job: Job) -> Table:
    ledger = step_ledger(shape, job)
    return {instant: dict(ledger.at[instant]) for instant in INSTANTS if instant in ledger.at}


def extrapolate(shallow: Table, deep: Table, layers: int) -> Table:
    """Each instant and category on the line through the two depths."""
    beyond = layers - DEPTHS[1]
    return {
        instant: {category: size + beyond * (size - shallow[instant].get(category, 0)) for category, size in at.items()}
        for instant, at in deep.items()
    }
