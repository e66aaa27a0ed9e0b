"""What a check costs, and what importing the package costs in a fresh interpreter."""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from gpucourse.evidence import columns_text

ROUNDS = 15
BANK = '''from gpucourse.exercises.kinds import Misconception, Number
EXERCISES = (Number("96.1", "Bytes", expected=lambda: 4 + 4 + 8, unit="bytes", hints=("First.", "Second."),
                    misconceptions=(Misconception(4, "Weights only."),)),)
'''
CHECK = '''import sys
from time import perf_counter
from gpucourse.exercises import bank
bank.__path__.append(sys.argv[1])
from gpucourse import check
times = []
for answer in (4, 16):
    start = perf_counter()
    check("96.1", answer)
    times.append(perf_counter() - start)
print(*times)
'''
IMPORT = '''from time import perf_counter
start = perf_counter()
import {module}
print(perf_counter() - start)
'''


def fresh(program: str, folder: Path) -> list[float]:
    """The seconds that the last line of a program in a fresh interpreter prints."""
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          env={"GPUCOURSE_STATE": str(folder / "state")})
    return [float(seconds) for seconds in done.stdout.splitlines()[-1].split()]


def row(what: str, seconds: list[float]) -> list[str]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return [what, *(f"{1e3 * value:.1f}" for value in (middle, low, high)), str(len(seconds))]


def interpreter(folder: Path) -> list[float]:
    start = perf_counter()
    fresh("print(0)", folder)
    return [perf_counter() - start]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lesson_96.py").write_text(BANK)
        measured: dict[str, Callable[[], list[float]]] = {
            "check": lambda: fresh(CHECK, folder),
            "import gpucourse": lambda: fresh(IMPORT.format(module="gpucourse"), folder),
            "import gpucourse.exercises": lambda: fresh(IMPORT.format(module="gpucourse.exercises"), folder),
            "python alone, started and ended": lambda: interpreter(folder),
        }
        runs = {what: [once() for _ in range(ROUNDS)] for what, once in measured.items()}
    checks = runs.pop("check")
    rows = [row("the first check of a kernel", [first for first, _ in checks]),
            row("a later check", [later for _, later in checks])]
    rows += [row(what, [value for (value,) in values]) for what, values in runs.items()]
    print(columns_text([["", "median ms", "lower quartile", "upper quartile", "runs"], *rows]))


if __name__ == "__main__":
    main()
