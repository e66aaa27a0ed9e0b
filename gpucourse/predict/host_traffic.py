"""What offload sends over the card's PCIe in a step: gradients to the host, whose optimizer steps, and weights back.

ZeRO-Offload, arXiv 2101.06840, section 4: each rank's own part of both. Gradients can leave while backward still makes
others; the new weights are waited for. Left out: how long the host's processor takes for the step itself.
"""

from gpucourse.catalog.gpus import Gpu
from gpucourse.catalog.jobs import Job
from gpucourse.catalog.links import Link
from gpucourse.predict.traffic import Transfer


def offloaded(job: Job, common: int, experts: int = 0) -> list[Transfer]:
    """common, experts: trained elements of a rank, before data-parallel ranks share the optimizer's state."""
    if not job.offload:
        return []
    layout, widths = job.layout, job.bytes
    ways = layout.replicas if layout.shard != "none" else 1
    mine = common / ways + experts / max(1, ways // layout.ep)
    return [Transfer("host", "copy", 2, widths.gradients * mine, 1, "backward"),
            Transfer("host", "copy", 2, widths.weights * mine, 1)]


def host_link(card: Gpu) -> Link:
    """Between a card and its host, one way, by data/gpus.toml; a copy's latency is nothing beside its size."""
    return Link("pcie", card.pcie_gb_s * 1e9, 0.0)
