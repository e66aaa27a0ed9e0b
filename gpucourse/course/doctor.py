"""gpucourse doctor: what this machine has, what each lesson will run on here, what is missing and how to get it."""

import json
import shutil
from dataclasses import dataclass
from html import escape

import click

from gpucourse.course import machine
from gpucourse.course.checkout import here
from gpucourse.course.lessons import Lesson, lessons
from gpucourse.evidence import Figure, columns_text, number, table_html

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Card:
    """The machine as the course sees it. runs_on: what each lesson will use here. missing: (what, how to get it)."""

    versions: dict[str, str]
    devices: list[dict]
    backends: dict[str, bool]
    ceilings: tuple[Figure, ...]
    runs_on: tuple[tuple[Lesson, str], ...]
    missing: tuple[tuple[str, str], ...]

    def tables(self) -> list[list[list[str]]]:
        """Everything but the gaps as tables of text, each with a head."""
        have = [["device", "kind", "capacity", "bf16", "note"]]
        have += [[d["label"], d["kind"], f"{d['capacity_bytes'] / 1024**3:.1f} GiB",
                  "native" if d["bf16"] else "emulated", d["note"]] for d in self.devices]
        ceilings = [["ceiling", "measured", "unit", "size", "on"]]
        ceilings += [[f.name, number(f.value), f.unit, f.source, f.device] for f in self.ceilings]
        software = [["software", "version"], *map(list, self.versions.items())]
        software += [[f"{name} backend", "yes" if there else "no"] for name, there in self.backends.items()]
        plan = [["lesson", "minutes", "can use", "here"]]
        plan += [[f"{lesson.number} · {lesson.title}", str(lesson.minutes), ", ".join(lesson.hardware), tier]
                 for lesson, tier in self.runs_on]
        return [table for table in (have, ceilings, software, plan) if len(table) > 1]

    def __str__(self) -> str:
        gaps = [f"missing: {what}\n         {cure}" for what, cure in self.missing]
        return "\n\n".join([*map(columns_text, self.tables()), *gaps])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        gaps = "".join(f"<p><b>missing: {escape(what)}</b><br>{escape(cure)}</p>" for what, cure in self.missing)
        return "".join(map(table_html, self.tables())) + gaps

    def json(self) -> str:
        """One object with stable keys."""
        return json.dumps({
            "versions": self.versions, "devices": self.devices, "backends": self.backends,
            "ceilings": [{"name": f.name, "value": f.value, "unit": f.unit, "kind": f.kind, "device": f.device}
                         for f in self.ceilings],
            "lessons": [{"lesson": lesson.name, "minutes": lesson.minutes, "hardware": list(lesson.hardware),
                         "runs_on": tier} for lesson, tier in self.runs_on],
            "missing": [{"what": what, "cure": cure} for what, cure in self.missing],
        }, indent=1, ensure_ascii=False)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object and nothing else.")
def command(as_json: bool) -> None:
    """Devices, measured ceilings, what each lesson will run on here; what is missing and how to get it."""
    found = card()
    click.echo(found.json() if as_json else found)


def card(ceilings=None) -> Card:
    """Look at this machine. Its ceilings are measured, which takes a few seconds, unless they are given."""
    from gpucourse import measure

    devices = machine.devices()
    gpus = sum(device["kind"] == "cuda" for device in devices)
    return Card(machine.versions(), devices, backends(), (ceilings or measure.ceilings()).readings().figures,
                tuple((lesson, tier(lesson, gpus)) for lesson in lessons(here())), tuple(missing(gpus)))


def backends() -> dict[str, bool]:
    """What torch was built with, and what it can use here."""
    import torch
    import torch.distributed as dist

    there = dist.is_available()
    return {"gloo": there and dist.is_gloo_available(), "nccl": there and dist.is_nccl_available(),
            "mps": torch.backends.mps.is_available()}


def tier(lesson: Lesson, gpus: int) -> str:
    """The most that the lesson can use and this machine has. Several nodes are never assumed: torchrun says so."""
    if gpus > 1 and "gpus" in lesson.hardware:
        return f"{gpus} gpus"
    if gpus and "gpu" in lesson.hardware:
        return "gpu"
    return "cpu" if "cpu" in lesson.hardware else f"not here: needs {lesson.hardware[0]}"


def missing(gpus: int) -> list[tuple[str, str]]:
    """What this machine lacks, each with the way to get it."""
    gaps = []
    if gpus == 0:
        gaps.append(("a CUDA GPU", "the lessons run on the CPU and show recorded or published figures beside it; for a "
                     "GPU of your own, install NVIDIA's driver and a CUDA build of torch (make course PIP_ARGS=…)"))
    elif gpus == 1:
        gaps.append(("a second GPU", "ranks run on the CPU by gloo; Kaggle lends two T4s"))
    if gpus and not shutil.which("nsys"):
        gaps.append(("nsys", "comes with NVIDIA Nsight Systems; the profiling lessons read a recorded export instead"))
    if not any(map(shutil.which, BROWSERS)):
        gaps.append(("Chromium", "only the browser tests need it: apt-get install chromium"))
    return gaps
