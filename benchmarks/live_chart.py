"""What the live chart costs: a one-thread training loop with and without it, in alternation, in a real kernel.

    python benchmarks/live_chart.py

Prints the slowdown of a step, median and quartiles, and the processor time of all that `watch` does beside the
loop. Both are taken in a Jupyter kernel, with memory categories on and the widget drawn; a client reads its messages.
Then what the kernel does while two ranks watch, less what it does while they do not.
"""

import nbformat
from nbclient import NotebookClient

SETUP = """
import statistics, time
import torch
from gpucourse import watch
from gpucourse.evidence import columns_text
from gpucourse.measure.timing import quartiles

torch.set_num_threads(1)
def loop(width, depth, batch):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)])
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(batch, width)
    def step():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return step

def per_step(step, count, w=None):
    begin = time.perf_counter()
    for _ in range(count):
        step()
        if w is not None:
            w.step(1)
    return (time.perf_counter() - begin) / count
"""

SLOWDOWN = """
rows = [["step", "rounds", "slowdown, median", "middle half"]]
for width, depth, batch, count in ((64, 4, 16, 1500), (256, 12, 128, 150), (512, 24, 256, 15)):
    step = loop(width, depth, batch)
    per_step(step, count)
    ratios, plain = [], []
    for turn in range(12):
        def watched():
            with watch("benchmark", live=True) as w:
                return per_step(step, count, w)
        first, second = (watched, lambda: per_step(step, count))[::1 if turn % 2 else -1]
        times = {first: first(), second: second()}
        without = next(seconds for call, seconds in times.items() if call is not watched)
        ratios.append(times[watched] / without - 1)
        plain.append(without)
    low, middle, high = quartiles(ratios)
    rows.append([f"{statistics.median(plain) * 1e3:.2f} ms", "12", f"{middle:+.1%}", f"{low:+.1%} … {high:+.1%}"])
"""

# Processor time of the process less that of the thread that trains: all that goes on beside the loop.
BACKGROUND = """
def beside(step, seconds, w=None):
    begin, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
    while time.perf_counter() - begin < seconds:
        per_step(step, 1, w)
    wall = time.perf_counter() - begin
    return (time.process_time() - process - (time.thread_time() - thread)) / wall

step = loop(256, 12, 128)
idle = beside(step, 10)
with watch("benchmark", live=True) as w:
    per_step(step, 400, w)     # fill the history, so that drawings are as large as they get
    share = beside(step, 20, w)
"""

# The kernel itself only waits for its ranks, and draws.
RANKS = """
from gpucourse import ranks
from gpucourse.ranks.running import warm_up

def train(seconds, watched):
    import contextlib, time
    import torch
    from gpucourse import watch
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    begin = time.perf_counter()
    with watch("benchmark", live=True) if watched else contextlib.nullcontext() as w:
        while time.perf_counter() - begin < seconds:
            model(torch.randn(64, 512)).square().mean().backward()
            optimizer.step()
            time.sleep(0.03)
            if watched:
                w.step(64)

def used(watched, seconds):
    process = time.process_time()
    ranks.run(train, 2, seconds, watched)
    return time.process_time() - process

def of_the_kernel(watched, seconds=20):
    return (used(watched, seconds + 5) - used(watched, 5)) / seconds  # without the finished picture, which both draw

warm_up()
used(True, 1)  # what drawing imports is imported once
with_chart, without = map(of_the_kernel, (True, False))
"""

SAY = """
print(columns_text(rows))
print(f"background: {share:.2%} of one core beside a watched loop, {idle:.2%} beside one that is not")
print(f"the kernel: {with_chart:.2%} of one core while two ranks watch, {without:.2%} while they do not")
"""


def main() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, SLOWDOWN, BACKGROUND, RANKS, SAY)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    print("".join(output["text"] for output in notebook.cells[-1].outputs if output.output_type == "stream"))


if __name__ == "__main__":
    main()
