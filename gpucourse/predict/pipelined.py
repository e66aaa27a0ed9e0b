"""The highest moments of a pipeline's rank: those of its stages, and beside each what else the rank holds then."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpucourse.catalog.jobs import Job, recompute_of_layers
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import owned, part, stages_of
from gpucourse.predict import moments as at
from gpucourse.predict import staged
from gpucourse.predict.moments import Moment, highest
from gpucourse.predict.pipeline import Situation, situations
from gpucourse.predict.step import Step


class Stage(NamedTuple):
    """One stage, without what else its rank has.

    step: once a backward ran, and before. held: bytes of a micro-batch in flight. gathered: bytes that stay gathered
    after a forward or a backward. highs: the highest moments, with their bytes, of each situation so far.
    """

    step: dict[bool, Step]
    held: int
    gathered: dict[str, int]
    highs: dict[tuple, tuple[tuple[int, Moment], ...]]

    @classmethod
    def of(cls, step: dict[bool, Step]) -> "Stage":
        return cls(step, step[True].held, staged.gathered(step[True]), {})

    def alone(self, now: Situation) -> tuple[tuple[int, Moment], ...]:
        """Of each instant the highest moment of a forward or backward, and its bytes."""
        of = now.kind, now.began, now.after
        if of not in self.highs:
            step = self.step[now.began].once(now.after)
            backward = staged.backward if step.layout.staged else at.backward
            found = highest(at.forward(step) if now.kind == "F" else backward(step))
            self.highs[of] = tuple((moment.total, moment) for moment in found.values())
        return self.highs[of]


class Stages:
    """The stages of a job's pipeline. Most are alike, on one rank and on another: each kind is worked out once."""

    def __init__(self, shape: Shape, job: Job):
        self.shape, self.job, self.layout = shape, job, job.layout
        dense = shape.experts.dense_layers if shape.experts else 0
        self.layers = [(word, i < dense) for i, word in enumerate(recompute_of_layers(job.recompute, shape.layers))]
        self.parts = [part(shape.layers, job.layout.stages, stage) for stage in range(job.layout.stages)]
        self.kinds: dict[tuple, Stage] = {}

    def stage(self, stage: int) -> Stage:
        of = self.parts[stage]
        kind = of.first, of.last, *self.layers[of.layers.start:of.layers.stop]
        if kind not in self.kinds:
            self.kinds[kind] = Stage.of({began: Step(self.shape, self.job, of, began=began) for began in (False, True)})
        return self.kinds[kind]

    def of_rank(self, rank: int) -> tuple[Step, dict[str, Moment]]:
        """What a rank has, as a step through its first stage; and of each instant its highest moment."""
        mine = stages_of(self.layout, rank)
        own = Step(self.shape, self.job, self.parts[mine[0]], owned([self.parts[stage] for stage in mine]), began=True)
        played = self.played({stage: self.stage(stage) for stage in mine}, own, rank)
        return own, highest([*played, *staged.shared_out(own), *at.update(own)])

    def played(self, mine: Mapping[int, Stage], own: Step, rank: int) -> Iterator[Moment]:
        """The highest moments of forwards and backwards, with micro-batches in flight, and what other stages hold."""
        most: dict[str, tuple[int, Moment, Mapping[str, int]]] = {}
        found = {stage: {began: others_gradients(step, own) for began, step in of.step.items()}
                 for stage, of in mine.items()}
        for now in situations(self.job, rank):
            flying = sum(count * mine[of].held for of, count in now.others)
            gathered = sum(mine[of].gathered[did] for of, did in now.last)
            beside = {at.OTHERS: flying, at.GATHERED: gathered, **found[now.stage][now.began]}
            more = sum(beside.values())
            for alone, moment in mine[now.stage].alone(now):
                if moment.instant not in most or alone + more > most[moment.instant][0]:
                    most[moment.instant] = alone + more, moment, beside
        for _, moment, beside in most.values():
            yield moment.with_more(beside)


def others_gradients(stage: Step, rank: Step) -> dict[str, int]:
    """Bytes of gradients that a micro-batch finds at the rank's other stages, if it finds any."""
    name, found = at.found(stage)
    return {name: at.found(rank)[1] - found} if found else {}
