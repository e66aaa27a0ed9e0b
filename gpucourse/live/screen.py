"""Where the chart appears: a widget while the cell runs, a picture and a line of text when it has ended."""

import sys
import time
from base64 import b64encode
from collections.abc import Callable

from gpucourse.live import chart_png, chart_svg

REDRAW = 0.2  # seconds between two drawings, at least
SHARE = 1 / 400  # of one core, at most, for drawing: what takes longer to draw is drawn less often


class Pace:
    """Draws when the last drawing is `least` seconds old or, if that took long, older."""

    def __init__(self, least: float = REDRAW):
        self._least, self._due = least, 0.0

    def draw(self, draw: Callable[[], None]) -> None:
        if time.monotonic() < self._due:
            return
        before = time.thread_time()
        draw()
        self._due = time.monotonic() + max(self._least, (time.thread_time() - before) / SHARE)


class Screen:
    """One output of the running cell. Made, and frozen, in the cell's thread; `show` may be called from another.

    who: what tells this process from others that watch the same. kind: of evidence of the throughput.
    """

    who, kind = "", "measured"

    def __init__(self, live: bool):
        self._widget = self._handle = None
        self._pace = Pace()
        if live and in_notebook():
            import ipywidgets
            from IPython.display import display

            self._widget = ipywidgets.HTML()
            self._handle = display(self._widget, display_id=True)

    def show(self, picture: Callable) -> None:
        """Draw what `picture` returns, if it is time to, and somebody watches."""
        if self._widget is not None:
            self._pace.draw(lambda: setattr(self._widget, "value", chart_svg.svg(picture())))

    def freeze(self, picture, line: str) -> None:
        """Replace the widget, which a reopened notebook could not show, by a PNG; then print the line.

        Outside a notebook there is only the line, and nothing is drawn.
        """
        if in_notebook():
            from IPython.display import display

            bundle = {"image/png": b64encode(chart_png.png(picture)).decode(), "text/plain": line}
            if self._handle is None:
                display(bundle, raw=True)
            else:
                self._handle.update(bundle, raw=True)
                self._widget.close()
        print(line)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, which can show more than text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")
