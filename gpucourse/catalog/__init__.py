"""Units, GPUs, links, model shapes, job layout: the catalogue that predictions start from."""

from gpucourse.catalog.cluster import Cluster, cluster
from gpucourse.catalog.gpus import Gpu, gpu
from gpucourse.catalog.jobs import OPTIMIZERS, PRECISIONS, RECOMPUTES, Job, Precision
from gpucourse.catalog.layouts import Layout
from gpucourse.catalog.models import shape
from gpucourse.catalog.profiles import pick, resolve
from gpucourse.catalog.published import published
from gpucourse.catalog.shapes import Shape, gpt, llama
from gpucourse.catalog.units import GiB, KiB, MiB, bytes_text, gib, seconds_text

__all__ = ["OPTIMIZERS", "PRECISIONS", "RECOMPUTES", "Cluster", "GiB", "Gpu", "Job", "KiB", "Layout", "MiB",
           "Precision", "Shape", "bytes_text", "cluster", "gib", "gpt", "gpu", "llama", "pick", "published", "resolve",
           "seconds_text", "shape"]
