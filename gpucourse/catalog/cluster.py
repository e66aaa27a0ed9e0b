"""A cluster: how many GPUs, how many of them a fast link joins, and the network between those groups."""

from dataclasses import dataclass

from gpucourse.catalog.gpus import Gpu, gpu
from gpucourse.catalog.links import Link, link
from gpucourse.errors import BadInput, positive_int

# What a collective in a ring sends leaves a node once, however many of the ring's ranks are in it; these send to one
# particular rank, each through its own network port.
DIRECT = ("send", "all-to-all")


@dataclass(frozen=True)
class Cluster:
    """gpus GPUs in nodes of gpus_per_node. inside joins those of a domain, network the domains.

    domain: how many GPUs the inside link joins: those of a node, or of a rack.
    """

    gpu: Gpu
    gpus: int
    gpus_per_node: int
    inside: Link
    network: Link | None
    domain: int

    def __post_init__(self):
        if self.gpus > self.domain and self.network is None:
            raise BadInput(f"{self.gpus} GPUs are more than the {self.domain} that {self.inside.name} joins here; name "
                           "the network between them, for instance ib-400")

    def leaves(self, stride: int, ranks: int) -> bool:
        """Whether a group of `ranks` ranks, each `stride` after the last, has members in more than one domain."""
        span = stride * ranks
        return self.gpus > self.domain and (span > self.domain or self.domain % span != 0)

    def link(self, collective: str, stride: int, ranks: int) -> Link:
        """What one rank of such a group has of the links that its collective crosses.

        In a ring of n ranks with m in each domain, one hop in m uses the network; each of m rings enters by another
        of the m ports, so that a rank sees m ports' bandwidth, and no more than the inside link's.
        """
        if not self.leaves(stride, ranks):
            return self.inside
        together = 1 if collective in DIRECT else max(1, self.domain // stride)
        if together == 1:
            return self.network
        latency = ((together - 1) * self.inside.latency + self.network.latency) / together
        bandwidth = min(together * self.network.bandwidth, self.inside.bandwidth)
        return Link(f"{together} × {self.network.name}", bandwidth, latency)

    def __str__(self) -> str:
        within = f", {self.inside.name} within {self.domain}" if self.gpus > 1 else ""
        between = f", {self.network.name} between" if self.gpus > self.domain else ""
        return f"{self.gpus} × {self.gpu.name}{within}{between}"


def cluster(card: str | Gpu, gpus: int = 1, gpus_per_node: int = 0, network: str = "") -> Cluster:
    """A cluster of known GPUs. gpus_per_node: 0 takes what the GPU's own link joins. network: a link's name or GB/s:µs.

    Raises BadInput for unknown names and numbers that are not at least 1.
    """
    card = gpu(card) if isinstance(card, str) else card
    inside, number = link(card.link), positive_int("gpus", gpus)
    node = min(inside.domain, number) if gpus_per_node == 0 else positive_int("gpus-per-node", gpus_per_node)
    domain = inside.domain if inside.rack else min(node, inside.domain)
    return Cluster(card, number, node, inside, link(network) if network else None, min(domain, number))
