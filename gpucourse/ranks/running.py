"""`ranks.run`: a function of this notebook on real processes that can talk to each other."""

import os
import sys
import time

from gpucourse.catalog.links import Link
from gpucourse.catalog.links import link as named_link
from gpucourse.errors import BadInput, positive, positive_int
from gpucourse.ranks import launching, pickling
from gpucourse.ranks.following import Launch
from gpucourse.ranks.report import Returned, Waiting, failed
from gpucourse.ranks.timeline import Span
from gpucourse.settings import child_environment

MOST = 64
LOADING = 120  # seconds


class Results(list):
    """What each rank returned, by rank. timeline: what each marked with `ranks.span`, and what a paced link carried."""

    def __init__(self, values, timeline: tuple[tuple[Span, ...], ...]):
        super().__init__(values)
        self.timeline = timeline


def run(fn, n: int, *args, timeout: float = 60, link: Link | str | None = None, env: dict[str, str] | None = None,
        **kwargs) -> Results:
    """Run `fn(*args, **kwargs)` on n ranks of torch.distributed, fresh processes of this machine; results by rank.

    The process group is there when `fn` begins: NCCL, with each rank's device set, where there are n GPUs or more; else
    gloo, on the CPU. Each rank has one thread. What ranks print is shown as it comes. Tensors come back on the CPU.
    A loop that ranks `watch` is drawn in the notebook while it runs, with a line a rank.

    timeout: seconds, from when all ranks have begun, after which those that have not finished are ended. link: a name
    of data/links.toml or `GB/s:µs`; collectives and point-to-point messages, on gloo, then take as long as they would
    over it. env: variables for the ranks. Raises RankError when a rank fails or the time is up, BadInput for what
    cannot be sent to another process.
    """
    call = packed(fn, args, kwargs)
    if positive_int("ranks", n) > MOST:
        raise BadInput(f"ranks is {n}; {MOST} processes are the most, ranks.simulate takes more in one process")
    job = dict(world_size=n, timeout=positive("timeout", timeout), link=as_link(link), folder=os.getcwd(),
               path=sys.path, environment=child_environment(**local(), **checked(env)), started=time.monotonic())
    with launching.connection() as to_server, Launch(to_server, n, timeout) as launch:
        launch.start(job, call)
        launch.follow()
    outcomes = {rank.number: rank.outcome or Waiting() for rank in launch.ranks}
    if not all(isinstance(outcome, Returned) for outcome in outcomes.values()):
        said = {rank.number: rank.relay.last for rank in launch.ranks}
        raise failed(outcomes, said, timeout if launch.late else None)
    values = [outcomes[rank].value for rank in range(n)]
    return Results(values, tuple(outcomes[rank].spans for rank in range(n)))


def warm_up() -> None:
    """Wait until ranks begin with all that training uses loaded, so that no deadline is spent on it."""
    if launching.FORKS and not launching.loaded(0):
        run(int, 1)  # when its first launch has ended the server begins to load
        launching.loaded(LOADING)


def packed(fn, args: tuple, kwargs: dict) -> list:
    if not callable(fn):
        raise BadInput(f"ranks.run was given {type(fn).__name__}, not a function: pass the function, not its result: "
                       "ranks.run(train, 2, data), not ranks.run(train(data), 2)")
    try:
        return pickling.pack((fn, args, kwargs))
    except Exception as error:
        raise BadInput(f"{getattr(fn, '__name__', 'the function')}, or what it uses, cannot be sent to another process "
                       f"({type(error).__name__}: {error}); make that inside the function") from error


def as_link(link: Link | str | None) -> Link | None:
    if link is None or isinstance(link, Link):
        return link
    if not isinstance(link, str):
        raise BadInput(f"link is {link!r}; it must be a name such as 'ethernet-100', or 'GB/s:µs'")
    return named_link(link)


def checked(env: dict[str, str] | None) -> dict[str, str]:
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(f"env has {name!r}: {value!r}; names and values of variables must be text")
    return env or {}


def local() -> dict[str, str]:
    """Ranks of one machine talk over its loopback: gloo hangs where the host's name does not resolve."""
    return {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
