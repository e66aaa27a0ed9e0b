"""gpucourse run: lessons in a batch, one process a notebook, and one folder with all that came of it."""

import os
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

import click

from gpucourse.course import record
from gpucourse.course.checkout import Checkout, here, write
from gpucourse.course.executing import Outcome, execute
from gpucourse.course.lessons import choose
from gpucourse.course.tasks import Task, tasks, values
from gpucourse.errors import positive_int

DEADLINES = {"auto": 300, "smoke": 300, "full": 3600}  # seconds a notebook; smoke sizes are made for 60
BAR = "{desc}{percentage:3.0f} %|{bar}| {n_fmt} of {total_fmt} cells, {elapsed}"


@click.command()
@click.argument("names", nargs=-1, metavar="[LESSON]...")
@click.option("--profile", type=click.Choice(list(DEADLINES)), default="auto", show_default=True,
              help="smoke: seconds on two cores; full: fills the device; auto: smoke.")
@click.option("--solved", is_flag=True, help="Run the solutions instead of the learner's notebooks.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Notebooks side by side.")
@click.option("--resume", is_flag=True, help="Skip what the same source and parameters have finished.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; a new one in runs/ if not given.")
@click.option("-p", "given", nargs=2, multiple=True, metavar="NAME VALUE", help="A value for the parameters cell.")
def command(names, profile, solved, jobs, resume, out, given) -> None:
    """Run every LESSON, or all of them, and write notebooks, evidence, summary.json and report.html."""
    positive_int("--jobs", jobs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checkout = here()
    out = (out or folder(checkout, resume)).resolve()
    ready = tasks(checkout, choose(checkout, names), solved, {"profile": profile} | values(given))
    ended = run(checkout, ready, out, solved=solved, jobs=jobs, resume=resume, deadline=DEADLINES[profile])
    click.echo(f"{sum(state == 'done' for state in ended)} of {len(ended)} lessons done; {out / 'report.html'}")
    sys.exit(0 if all(state == "done" for state in ended) else 1)


def folder(checkout: Checkout, resume: bool) -> Path:
    """The last run's folder to resume, or a new one named after the time."""
    before = sorted(path for path in checkout.runs.glob("*") if path.is_dir())
    if resume and before:
        return before[-1]
    return checkout.runs / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def run(checkout: Checkout, ready: list[Task], out: Path, *, solved: bool = False, jobs: int = 1,
        resume: bool = False, deadline: float = DEADLINES["smoke"]) -> list[str]:
    """Run the tasks into the folder `out` and return each one's state. Nothing in `out` is ever half written."""
    from tqdm import tqdm

    from gpucourse.course.page import page

    kept = record.finished(out, {task.lesson.name: task.fingerprint for task in ready}) if resume else {}
    entries = {task.lesson.name: kept.get(task.lesson.name) or record.waiting(task) for task in ready}
    header = record.header(solved)
    write(out / "summary.json", record.summary(header, entries))
    todo = [task for task in ready if task.lesson.name not in kept]
    watched = sys.stderr.isatty()
    stop = threading.Event()
    with (tqdm(total=sum(task.cells for task in todo), disable=not watched, bar_format=BAR) as bar,
          ThreadPoolExecutor(jobs) as pool):
        for name in kept:
            tqdm.write(f"{name}: done before, kept")
        futures = {pool.submit(_one, checkout, task, out, solved, deadline, stop, bar, share_of(jobs)): task
                   for task in todo}
        try:
            for future in as_completed(futures):
                task, outcome = futures[future], future.result()
                entries[task.lesson.name] = record.entry(task, outcome)
                write(out / "summary.json", record.summary(header, entries))
                tqdm.write(_line(task, outcome))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    write(out / "evidence.jsonl", record.merged(out, list(entries)))
    write(out / "report.html", page([out]))
    return [entry["state"] for entry in entries.values()]


def share_of(jobs: int) -> dict[str, str]:
    """Each of several jobs computes on its share of the cores: threads that outnumber them wait for each other."""
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}


def _one(checkout: Checkout, task: Task, out: Path, solved: bool, deadline: float, stop: threading.Event,
         bar, share: dict[str, str]) -> Outcome:
    """Execute one notebook beside the run's folder, then put it there, also when it failed."""
    name, begun = task.lesson.name, 0

    def reached(cells: int) -> None:
        nonlocal begun
        bar.set_description(name, refresh=False)
        bar.update(cells - begun)
        begun = cells

    if bar.disable:
        bar.write(f"{name}: started, {task.cells} cells")
    record.forget(out, name)
    environment = {"GPUCOURSE_RUN": str(out), "GPUCOURSE_LESSON": name, "GPUCOURSE_SOLVED": "1" if solved else "",
                   **share}
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "source.ipynb"), Path(scratch, "executed.ipynb")
        write(source, task.notebook)
        outcome = execute(source, target, parameters=task.parameters, cwd=checkout.notebooks,
                          environment=environment, deadline=deadline, stop=stop, reached=reached)
        reached(task.cells)
        if target.exists():
            write(out / f"{name}.ipynb", target.read_text(encoding="utf-8"))
        if outcome.state != "done":
            write(out / f"{name}.log", target.with_suffix(".log").read_text(encoding="utf-8", errors="replace"))
    return outcome


def _line(task: Task, outcome: Outcome) -> str:
    says = f"{task.lesson.name}: {outcome.state}, {outcome.seconds:.0f} s"
    where = f"exercise {outcome.exercise}" if outcome.exercise else f"cell {outcome.cell}"
    return says if outcome.state == "done" else f"{says}; {where}: {outcome.error}"
