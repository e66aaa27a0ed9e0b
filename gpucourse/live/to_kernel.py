"""Where a rank's chart appears: in the notebook that launched it, beside those of the other ranks."""

import contextlib
import time
from collections.abc import Callable

from gpucourse.live.all_ranks import AllRanks
from gpucourse.live.picture import Picture
from gpucourse.live.rank_loop import rank_loop
from gpucourse.live.screen import REDRAW, Pace
from gpucourse.ranks.telling import Channel

AT_ONCE = 8  # ranks that tell as often as the chart is drawn; where there are more, each tells less often


class ToKernel:
    """In a rank what Screen is in the kernel: what it is to show, it tells the kernel."""

    def __init__(self, channel: Channel, live: bool):
        self.who, self.kind = f", rank {channel.rank}", "simulated" if channel.paced else "measured"
        self._channel, self._live = channel, live
        self._pace = Pace(REDRAW * max(1, channel.ranks / AT_ONCE))
        self._begin = time.monotonic()  # one clock for all processes of a machine

    def show(self, picture: Callable[[], Picture]) -> None:
        self._pace.draw(lambda: self._tell(picture()))

    def freeze(self, picture: Picture, line: str) -> None:
        self._tell(picture, line)

    def _tell(self, picture: Picture, line: str = "") -> None:
        with contextlib.suppress(OSError):  # the kernel is gone, or done with this launch
            self._channel.tell(AllRanks, rank_loop(picture, self._begin, self._live, line))
