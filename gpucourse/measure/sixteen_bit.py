"""Are 16-bit products computed here, or emulated? What the library says, and what a clock says.

Run as `python -m gpucourse.measure.sixteen_bit`: one JSON object on standard output, for a process whose environment
hides instructions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from gpucourse.errors import CourseError
from gpucourse.measure.devices import device
from gpucourse.measure.timing import alternate
from gpucourse.settings import child_environment

# Rows of the square matrices. On a CPU an emulated bf16 product takes tens, an fp16 one thousands of times fp32's time.
ROWS = {"cpu": {"bf16": 384, "fp16": 96}, "cuda": {"bf16": 4096, "fp16": 4096}}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DEADLINE = 120  # seconds for a fresh process


@dataclass(frozen=True)
class SixteenBit:
    """real: the library says that bf16 products are not emulated. ratios: time of a product / of fp32's, by dtype."""

    real: bool
    ratios: Mapping[str, float]
    rows: Mapping[str, int]
    device: str

    def __str__(self) -> str:
        times = ", ".join(f"{name} {ratio:.3g} × ({self.rows[name]} rows)" for name, ratio in self.ratios.items())
        return (f"{self.device}: bf16 is {'real' if self.real else 'emulated'}, says the library\n"
                f"a product's time against fp32's, measured: {times}")


def sixteen_bit() -> SixteenBit:
    """The lessons' device, by small square products in alternation with fp32's."""
    on = device()
    rows = ROWS[on.kind]
    return SixteenBit(on.bf16, {name: _ratio(name, rows[name], on.torch) for name in rows}, rows, on.label)


def without_instructions() -> SixteenBit:
    """This CPU as one without 16-bit instructions: a fresh process whose CPU library may use AVX2 and no more."""
    hidden = child_environment(ONEDNN_MAX_CPU_ISA="AVX2", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run([sys.executable, "-m", "gpucourse.measure.sixteen_bit"], env=hidden, capture_output=True,
                          text=True, timeout=DEADLINE)
    if done.returncode:
        raise CourseError(f"the process without 16-bit instructions failed: {done.stderr.strip().splitlines()[-1]}")
    return SixteenBit(**json.loads(done.stdout))


def _ratio(name: str, rows: int, on: str) -> float:
    x32 = torch.randn(rows, rows, device=on)
    x16 = x32.to(DTYPES[name])
    return alternate(lambda: x16 @ x16, lambda: x32 @ x32, rounds=5, names=(name, "fp32")).value


if __name__ == "__main__":
    print(json.dumps(asdict(sixteen_bit())))
