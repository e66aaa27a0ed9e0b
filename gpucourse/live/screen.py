"""Where the chart appears: a widget while the cell runs, a picture and a line of text when it has ended."""

import sys
from base64 import b64encode
from collections.abc import Callable


class Screen:
    """One output of the running cell. Made, and frozen, in the main thread; `show` may be called from another."""

    def __init__(self, live: bool):
        self._widget = self._handle = None
        if live and in_notebook():
            import ipywidgets
            from IPython.display import display

            self._widget = ipywidgets.HTML()
            self._handle = display(self._widget, display_id=True)

    @property
    def live(self) -> bool:
        return self._widget is not None

    def show(self, svg: str) -> None:
        self._widget.value = svg

    def freeze(self, png: Callable[[], bytes], line: str) -> None:
        """Replace the widget, which a reopened notebook could not show, by the PNG; then print the line.

        Outside a notebook there is only the line, and no picture is drawn.
        """
        if in_notebook():
            from IPython.display import display

            bundle = {"image/png": b64encode(png()).decode(), "text/plain": line}
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
