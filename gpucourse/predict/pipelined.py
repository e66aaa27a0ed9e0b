"""The highest moments of a pipeline's rank: those of its stages, and beside each what else the rank holds then."""

from collections.abc import Iterator, Mapping

from gpucourse.catalog.halves import in_halves
from gpucourse.catalog.jobs import Job, recompute_of_layers
from gpucourse.catalog.shapes import Shape
from gpucourse.catalog.stages import Part, owned, part, stages_of
from gpucourse.predict import half_moments, staged
from gpucourse.predict import moments as at
from gpucourse.predict.moments import Moment, highest
from gpucourse.predict.pipeline import SHARED, UNCAST, WHOLE, Situation, situations
from gpucourse.predict.step import Step


class Stage:
    """One stage, without what else its rank has. highs: the highest moments, with their bytes, of each kind so far."""

    def __init__(self, shape: Shape, job: Job, part: Part):
        self.step = {began: Step(shape, job, part, began=began) for began in (False, True)}
        self.highs: dict[tuple, tuple[tuple[int, Moment], ...]] = {}
        step = self.step[True]
        self.flying, self.owed = step.held, 0
        self.gathered = staged.gathered(step)
        self.gradients = {0: 0, SHARED: at.all_gradients(step), WHOLE: at.found(step)[1]}
        if in_halves(job):
            # of the first stage nothing is done for the input: only the gradient of its output waits
            more = 0 if part.first else half_moments.owed(step)
            self.owed = step.held + more + step.stream * (not part.last)
            self.gradients[UNCAST] = at.found(step.once("", uncast=True))[1]

    def alone(self, now: Situation) -> tuple[tuple[int, Moment], ...]:
        """Of each instant the highest moment of what the stage does now, and its bytes."""
        of = now.kind, now.gradients, now.after
        if of not in self.highs:
            step = self.step[now.gradients >= WHOLE].once(now.after, now.gradients == UNCAST)
            whole = staged if step.layout.staged else at
            plays = {"F": whole.forward, "B": whole.backward, "I": half_moments.for_input,
                     "W": half_moments.for_weights, "R": staged.shared_out}
            found = highest(plays[now.kind](step))
            self.highs[of] = tuple((moment.total, moment) for moment in found.values())
        return self.highs[of]


class Stages:
    """The stages of a job's pipeline. Most are alike, on one rank and on another: each kind is worked out once."""

    def __init__(self, shape: Shape, job: Job):
        self.shape, self.job, self.layout = shape, job, job.layout
        self.dense = shape.experts.dense_layers if shape.experts else 0
        words = recompute_of_layers(job.recompute, shape.layers)
        self.layers = [(word, i < self.dense) for i, word in enumerate(words)]
        self.parts = [part(shape.layers, job.layout.stages, stage) for stage in range(job.layout.stages)]
        self.kinds: dict[tuple, Stage] = {}
        self.found = at.UNREDUCED if job.layout.staged else at.GRADIENTS

    def stage(self, stage: int) -> Stage:
        of = self.parts[stage]
        kind = of.first, of.last, *self.layers[of.layers.start:of.layers.stop]
        if kind not in self.kinds:
            self.kinds[kind] = Stage(self.shape, self.job, of)
        return self.kinds[kind]

    def of_rank(self, rank: int) -> tuple[Step, dict[str, Moment]]:
        """What a rank has, as a step through its first stage; and of each instant its highest moment."""
        mine = stages_of(self.layout, rank)
        everything = owned([self.parts[stage] for stage in mine], self.dense)
        own = Step(self.shape, self.job, self.parts[mine[0]], everything, began=True)
        played = self.played({stage: self.stage(stage) for stage in mine}, rank)
        return own, highest([*played, *at.update(own)])

    def played(self, mine: Mapping[int, Stage], rank: int) -> Iterator[Moment]:
        """The highest moments of what the rank does, with micro-batches in flight, and what other stages hold."""
        most: dict[str, tuple[int, Moment, Mapping[str, int]]] = {}
        kinds = list(mine.values())
        for now in situations(self.job, rank, tuple(kinds.index(kind) for kind in kinds)):
            beside = self.beside(now, mine)
            more = sum(beside.values())
            for alone, moment in mine[now.stage].alone(now):
                if moment.instant not in most or alone + more > most[moment.instant][0]:
                    most[moment.instant] = alone + more, moment, beside
        for _, moment, beside in most.values():
            yield moment.with_more(beside)

    def beside(self, now: Situation, mine: Mapping[int, Stage]) -> dict[str, int]:
        held = {at.OTHERS: 0, at.GATHERED: 0, at.GRADIENTS: 0, at.UNREDUCED: 0}
        for of, flying, owed, gathered, gradients in now.beside:
            stage = mine[of]
            held[at.OTHERS] += flying * stage.flying + owed * stage.owed
            if of != now.stage:
                held[at.GATHERED] += stage.gathered[gathered]
                held[self.found if gradients >= WHOLE else at.GRADIENTS] += stage.gradients[gradients]
        return held
