"""`ranks.script`: a notebook's function as a program for torchrun, on one machine or several."""

import ast
import builtins
import inspect
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path

from gpucourse.errors import BadInput, positive_int

PORT = 29500
MARK = "# Written by gpucourse from a notebook's function"
MAIN = """
if __name__ == "__main__":
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() >= local_ranks:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    result = {call}
    print(f"[rank {{dist.get_rank()}}] {{result}}\\n", end="", flush=True)  # one write: lines of two ranks never mix
    dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Script:
    """The file, and the lines that run it: torchrun on each node, or srun in a Slurm job."""

    path: Path
    torchrun: str
    srun: str

    def __str__(self) -> str:
        return f"{self.path}\n\n  {self.torchrun}\n\n  {self.srun}"

    __repr__ = __str__


def script(fn, n: int, nodes: int = 1, *, args: tuple = (), path: str | Path | None = None) -> Script:
    """Write `fn`, and what it uses of the notebook, to a file that torchrun runs on n ranks; give the command lines.

    n: ranks in all, the same number on each of `nodes` machines. args: literals to call it with. path: the file,
    `NAME.py` in this folder by default; a file that is not a script of this kind is not overwritten.
    """
    if not inspect.isfunction(fn):
        raise BadInput(f"ranks.script was given {type(fn).__name__}, not a function: pass the function, not its result")
    if positive_int("ranks", n) % positive_int("nodes", nodes):
        raise BadInput(f"{n} ranks on {nodes} nodes is not the same number on each; choose a multiple of {nodes}")
    path = Path(path or f"{fn.__name__}.py")
    if path.exists() and not path.read_text().startswith(MARK):
        raise BadInput(f"{path} is not a script that was written here; choose another path")
    path.write_text(program(fn, args))
    return Script(path, torchrun(path, n // nodes, nodes), srun(path, n // nodes, nodes))


def torchrun(path: Path, per_node: int, nodes: int, node_rank: str = "$NODE", host: str = "$HOST") -> str:
    """NODE is 0, 1, … on the nodes in turn, HOST the name of the first."""
    if nodes == 1:
        return f"torchrun --standalone --nproc-per-node {per_node} {path}"
    return (f"torchrun --nnodes {nodes} --node-rank {node_rank} --nproc-per-node {per_node} "
            f"--master-addr {host} --master-port {PORT} {path}")


def srun(path: Path, per_node: int, nodes: int) -> str:
    """In a Slurm job: one torchrun a node, which starts the ranks of its node."""
    first = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    return (f"srun --nodes {nodes} --ntasks-per-node 1 "
            f"bash -c '{torchrun(path, per_node, nodes, '$SLURM_NODEID', first)}'")


def program(fn: types.FunctionType, args: tuple) -> str:
    """The text of a program that calls `fn(*args)` on every rank and prints what it returns."""
    parts = Parts({"import os": None, "import torch": None, "import torch.distributed as dist": None}, {}, {})
    parts.add_function(fn)
    call = f"{fn.__name__}({', '.join(literal('an argument', arg) for arg in args)})"
    values = [f"{name} = {text}" for name, text in parts.values.items()]
    head = [f"{MARK} {fn.__name__}; run it with torchrun", "\n".join(parts.imports)]
    return "\n\n".join([*head, *(["\n".join(values)] if values else []), *parts.functions.values()]) + "\n" + (
        MAIN.format(call=call))


@dataclass(frozen=True)
class Parts:
    """What a function needs, in order: import lines, values by name, sources of functions and classes by name."""

    imports: dict[str, None]
    values: dict[str, str]
    functions: dict[str, str]

    def add_function(self, thing) -> None:
        try:
            source = textwrap.dedent(inspect.getsource(thing))
        except (OSError, TypeError) as error:
            raise BadInput(f"the source of {thing.__name__} is not to be found ({error}); write it in a cell") from None
        self.functions[thing.__name__] = ""  # a function that calls itself is being added
        for name, value in used(thing, source).items():
            self.add(name, value, thing.__module__)
        del self.functions[thing.__name__]
        self.functions[thing.__name__] = f"\n{source.rstrip()}"

    def add(self, name: str, value, module: str) -> None:
        if name in self.functions or name in self.values:
            return
        if isinstance(value, types.ModuleType):
            self.imports[f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None
        elif inspect.isroutine(value) or inspect.isclass(value):
            if value.__module__ == module:
                self.add_function(value)
            else:
                self.imports[f"from {value.__module__} import {value.__name__}"
                             + (f" as {name}" if name != value.__name__ else "")] = None
        else:
            self.values[name] = literal(f"{name}, which the function uses,", value)


def used(thing, source: str) -> dict[str, object]:
    """What `source` names that is not its own: from the function's closure and its module's globals."""
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    known = vars(inspect.getmodule(thing) or builtins) | getattr(thing, "__globals__", {})
    if inspect.isfunction(thing):
        known = known | inspect.getclosurevars(thing).nonlocals
    return {name: known[name] for name in sorted(names - bound) if name in known and not hasattr(builtins, name)}


def literal(what: str, value) -> str:
    """`value` as Python text, or BadInput where it is no number, text, or list, tuple, dict of them."""
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError):
        same = False
    if not same:
        raise BadInput(f"{what} is a {type(value).__name__}, which cannot be written into a file; make it inside the "
                       "function, or use numbers and text")
    return text
