"""A whole prediction: memory, traffic, bubble and step time of a job on a cluster."""

from dataclasses import dataclass

from gpucourse.catalog.cluster import Cluster
from gpucourse.catalog.divides import must_divide
from gpucourse.catalog.gpus import Gpu
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.links import Link
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import BadInput, positive_int
from gpucourse.evidence import Figure, Readings
from gpucourse.predict.bubble import idle_seconds
from gpucourse.predict.compute import flops_per_token, hardware_flops_per_token
from gpucourse.predict.layout_traffic import over, stage_layers, step_traffic
from gpucourse.predict.ledger import Ledger
from gpucourse.predict.memory import memory
from gpucourse.predict.parameters import parameters
from gpucourse.predict.schedules import stages_a_rank
from gpucourse.predict.steptime import StepTime, ceiling, step_time
from gpucourse.predict.traffic import Transfer

Interval = tuple[float, float]
Carried = tuple[tuple[Transfer, Link], ...]


@dataclass(frozen=True)
class Plan:
    """carried: what one rank sends, and over which link. bubble: a fraction of the step. flops: the ceiling, FLOP/s."""

    shape: Shape
    job: Job
    cluster: Cluster
    ledger: Ledger
    carried: Carried
    bubble: float
    flops: float
    time: StepTime

    @property
    def fits(self) -> str:
        """yes, no or uncertain: what the device reports as used against the capacity that torch reports."""
        return self.ledger.fits(self.cluster.gpu)

    @property
    def tokens(self) -> int:
        """What all GPUs together read in a step."""
        return self.time.tokens * self.job.layout.dp

    @property
    def tokens_per_second_per_gpu(self) -> Interval:
        low, high = self.time.seconds
        return self.tokens / high / self.job.layout.ranks, self.tokens / low / self.job.layout.ranks

    @property
    def mfu(self) -> Interval:
        """A fraction of the dense peak, by the convention `palm`."""
        each = flops_per_token(self.shape, self.job.seq).total / self.cluster.gpu.peak(dtype(self.job))
        low, high = self.tokens_per_second_per_gpu
        return low * each, high * each

    def readings(self) -> Readings:
        """The ledger's figures, and the middle of the step's time."""
        middle = sum(self.time.seconds) / 2
        return Readings("computed", (*self.ledger.readings().figures, Figure("step", middle, "s", "computed")))


def plan(shape: Shape, job: Job, cluster: Cluster, flops: float = 0.0) -> Plan:
    """The prediction for the fullest rank. flops: the ceiling in FLOP/s; 0 takes the best product known of the GPU.

    Raises BadInput for a layout that the shape, the sequence or the cluster does not allow.
    """
    reached = flops or achievable(shape, job, cluster.gpu)
    carried, waits, time = step(shape, job, cluster, reached)
    return Plan(shape, job, cluster, memory(shape, job), carried, waits, reached, time)


def step(shape: Shape, job: Job, cluster: Cluster, flops: float) -> tuple[Carried, float, StepTime]:
    """What is sent and over which link, the bubble, and the time: a prediction without the memory."""
    layout = job.layout
    must_divide(shape, job)
    enough(cluster.gpus, layout)
    carried, waits = tuple(over(cluster, layout, step_traffic(shape, job))), bubble(job)
    work = dict(recompute=job.recompute, share=share(shape, job), bubble=waits, carried=carried)
    return carried, waits, step_time(shape, job.tokens * job.accumulate, job.seq, flops, **work)


def enough(gpus: int, layout: Layout) -> int:
    """`gpus`, or BadInput where the layout has more ranks."""
    if layout.ranks > positive_int("gpus", gpus):
        raise BadInput(f"{layout} is {layout.ranks} ranks; there are {gpus} GPUs")
    return gpus


def dtype(job: Job) -> str:
    """Of the matrix products: `bf16` of bf16-autocast and of bf16-master."""
    return job.precision.split("-")[0]


def achievable(shape: Shape, job: Job, on: Gpu) -> float:
    """FLOP/s of this job's products, as fast as the best ones known of the GPU; in fp8 attention stays in bf16."""
    if dtype(job) != "fp8":
        return ceiling(on, dtype(job))
    work = hardware_flops_per_token(shape, job.seq, "no-embedding", job.recompute)
    return work.total / (work.linear / ceiling(on, "fp8") + work.attention / ceiling(on, "bf16"))


def share(shape: Shape, job: Job) -> float:
    """The part of the model's work that the slowest rank does: of a pipeline, the stage with most layers, or the head.

    Norms and lookups count as nothing.
    """
    layout, count = job.layout, parameters(shape)
    each = 1 / (layout.tp * layout.cp)
    if layout.pp == 1:
        return each
    head = (count.head or count.embedding) / count.active
    block = (1 - head) / shape.layers
    slowest = max(stage_layers(shape, layout) * block, shape.layers // layout.pp * block + head)
    return min(1.0, slowest) * each


def bubble(job: Job) -> float:
    """The pipeline's waiting as a fraction of the step, a forward and each half of a backward being equally long."""
    layout = job.layout
    if layout.pp == 1:
        return 0.0
    chunks = stages_a_rank(layout.schedule, layout.pp, job.accumulate, layout.chunks)
    idle = idle_seconds(layout.schedule, layout.pp)
    return idle / (idle + 3 * job.accumulate * chunks)
