"""The frame of a finished picture: its title states the finding, a faint line below says what is drawn."""

import io

from gpucourse.live.picture import FAINT, GRID, INK

DPI, WIDTH = 100, 9.5
# Apart in grey and for colour-blind readers: dark, middle, light, and a warm one.
SHADES = ("#16325c", "#3d7ab3", "#9bbbd9", "#d9822b")
LINES, DASHES = ("#16325c", "#3d7ab3", "#d9822b"), ("-", (0, (5, 1.5)), (0, (1.5, 1)))


Box = tuple[float, float, float, float]  # left, bottom, width, height, as fractions of the picture


def page(title: str, says: str, *boxes: Box, height: float = 3.3, grid: str = "both"):
    """(figure, [axes in each box]). height: inches. grid: the axes whose ticks have lines: x, y or both.

    Uses no pyplot, so the learner's figures and backend are left alone.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, height), DPI, facecolor="white")
    FigureCanvasAgg(figure)
    every = [figure.add_axes(box) for box in boxes]
    for axes in every:
        axes.tick_params(which="both", labelsize=8.5, colors=INK, length=0)
        axes.grid(axis=grid, color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.text(0.008, 1 - 0.22 / height, title, fontsize=10.5, fontweight="bold", color=INK)
    figure.text(0.008, 1 - 0.445 / height, says, fontsize=8, color=FAINT)
    return figure, every


def panel(title: str, says: str, right: float = 0.84, left: float = 0.07):
    """(figure, axes) with the axes' right end at the fraction `right`: beyond it there is room for labels."""
    figure, (axes,) = page(title, says, (left, 0.16, right - left, 0.66))
    return figure, axes


def png(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
