"""How much of a GPU's peak a run uses: MFU counts what the model asks for, HFU what the hardware does."""

from dataclasses import dataclass

from gpucourse.catalog.gpus import Gpu, gpu, gpus
from gpucourse.catalog.shapes import Shape
from gpucourse.errors import positive, positive_int
from gpucourse.evidence import Figure, Readings
from gpucourse.predict.compute import CONVENTIONS, flops_per_token, hardware_flops_per_token

PLAUSIBLE = 0.7  # the highest MFU in data/published is 0.644


@dataclass(frozen=True)
class Utilization:
    """Model and hardware FLOPs utilization as fractions of the dense peak; 1.0 is all of it."""

    mfu: float
    hfu: float
    convention: str
    precision: str
    tflops_per_gpu: float
    flops_per_token: float
    peak_tflops: float
    warnings: tuple[str, ...]

    def readings(self) -> Readings:
        figures = (Figure("MFU", 100 * self.mfu, "%", "computed", source=CONVENTIONS[self.convention]),
                   Figure("HFU", 100 * self.hfu, "%", "computed", source=CONVENTIONS[self.convention]),
                   Figure("achieved", self.tflops_per_gpu, "TFLOP/s a GPU", "computed"))
        return Readings("computed", figures)


def mfu(shape: Shape, on: Gpu, tokens_per_second: float, seq: int, number: int = 1, precision: str = "bf16",
        convention: str = "palm", recompute: str = "none") -> Utilization:
    """The share of the peak of `number` GPUs that `tokens_per_second`, of all of them together, amounts to.

    precision: of the matrix products: a dtype of the GPU's table or a training precision such as bf16-autocast.
    """
    dtype = precision.split("-")[0]
    peak = on.peak(dtype)
    rate = positive("tokens-per-second", tokens_per_second) / positive_int("gpus", number)
    model = flops_per_token(shape, seq, convention).total
    used = rate * model
    hardware = rate * hardware_flops_per_token(shape, seq, convention, recompute).total
    return Utilization(
        mfu=used / peak, hfu=hardware / peak, convention=convention, precision=precision,
        tflops_per_gpu=used / 1e12, flops_per_token=model, peak_tflops=peak / 1e12,
        warnings=_warnings(on, dtype, used, hardware, number),
    )


def _warnings(on: Gpu, dtype: str, used: float, hardware: float, number: int) -> tuple[str, ...]:
    peak = on.peak(dtype)
    if used > peak:
        return (f"MFU is {used / peak:.0%} of {on.name}'s dense {dtype} peak, which cannot be. Likely: "
                + "; ".join(_causes(on, dtype, used, number)),)
    if hardware > peak:
        return (f"HFU is {hardware / peak:.0%}: less is recomputed than stated, or the convention counts too much",)
    return ()


def _causes(on: Gpu, dtype: str, used: float, number: int) -> list[str]:
    """What makes a figure pass 100 %: another precision, another card, several GPUs, sparse kernels."""
    causes = []
    if dtype != "fp8" and on.tflops.get("fp8", 0) * 1e12 >= used:
        causes.append(f"an fp8 run ({used / on.peak('fp8'):.1%} of {on.name}'s fp8 peak)")
    shares = {card.name: used / card.peak(dtype) for card in map(gpu, gpus()) if dtype in card.tflops}
    others = [f"{share:.1%} of {name}'s" for name, share in shares.items() if share <= PLAUSIBLE]
    if others:
        causes.append(f"another card ({', '.join(others[:3])})")
    if number == 1:
        causes.append("the tokens of several GPUs counted as one's")
    if used <= 2 * on.peak(dtype):
        causes.append("2:4-sparse kernels, whose peak is twice the dense one")
    return causes or ["a wrong throughput, sequence or model"]
