"""Where in the learner's code a rank is, or was: a stack of frames → the cell, the line, and the call it waits in."""

import linecache
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

Frame = tuple[str, int, str]  # file, line, function

FAULTHANDLER = re.compile(r'^  File "(.+)", line (\d+) in (.*)$', re.MULTILINE)
COLLECTIVES = ("distributed_c10d.py", "_functional_collectives.py", "paced.py")
WRAPPERS = ("wrapper", "inner", "wait", "wait_tensor", "_maybe_wrap_tensor")
PACKAGE = f"{Path(__file__).parent.parent}/"
LIBRARIES = {path for name, path in sysconfig.get_paths().items() if "lib" in name}
INSTALLED = (*LIBRARIES, PACKAGE, "<frozen", "<string>")
LONGEST = 300  # characters of an exception that is not the first


def parse(dump: str) -> tuple[Frame, ...]:
    """The frames of the last stack that faulthandler wrote, innermost first."""
    last = dump.rpartition("(most recent call first):")[2]
    return tuple((file, int(line), name) for file, line, name in FAULTHANDLER.findall(last))


def own(frame: Frame) -> bool:
    """Whether a frame is of the learner's code, and not of a library's or the package's."""
    return not frame[0].startswith(INSTALLED)


def waits(frames: Sequence[Frame]) -> str:
    """What a rank is doing, from its stack, innermost first: `waits in all_reduce at Cell In[3], line 4, in step`."""
    if not frames:
        return "was still running and did not say where"
    depth = next((depth for depth, frame in enumerate(frames) if own(frame)), None)
    call = collective(frames[:depth])
    doing = f"waits in {call}" if call else "is still running"
    return doing if depth is None else f"{doing} at {place(frames[depth])}{source(frames[depth])}"


def collective(frames: Sequence[Frame]) -> str:
    """The call of torch.distributed nearest to the learner's code, "" where there is none."""
    names = [name for file, _, name in frames if file.endswith(COLLECTIVES)]
    return next((name for name in reversed(names) if name not in WRAPPERS), names[-1] if names else "")


def trace(frames: Sequence[Frame]) -> list[str]:
    """The learner's own lines, and the innermost one where it is a library's. frames: outermost first."""
    shown = [frame for frame in frames if own(frame)]
    if frames and not own(frames[-1]):
        shown.append(frames[-1])
    return [f"  {place(frame)}{source(frame) if own(frame) else ''}" for frame in shown]


def last(frames: Sequence[Frame]) -> list[str]:
    """The innermost of the learner's own lines."""
    return [f"  {place(frame)}{source(frame)}" for frame in [frame for frame in frames if own(frame)][-1:]]


def place(frame: Frame) -> str:
    """`Cell In[3], line 4, in step`; for code in a file its name, without the folder."""
    file, line, name = frame
    return f"{cell(file) or Path(file).name}, line {line}, in {name}"


def source(frame: Frame) -> str:
    text = linecache.getline(frame[0], frame[1]).strip()
    return f"  →  {text}" if text else ""


def cell(file: str) -> str:
    """The label of the notebook cell that IPython compiled under this name, or ""."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    label = shell.compile.format_code_name(file) if shell else None
    return " ".join(label) if label else ""


def shortened(text: str) -> str:
    first, *more = text.splitlines() or [""]
    return first[:LONGEST] + (" …" if more or len(first) > LONGEST else "")
