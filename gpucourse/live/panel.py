"""A finished picture of one panel: its title states the finding, a faint line below says what is drawn."""

import io

from gpucourse.live.picture import FAINT, GRID, INK

DPI, SIZE = 100, (9.5, 3.3)
# Apart in grey and for colour-blind readers: dark, middle, light, and a warm one.
SHADES = ("#16325c", "#3d7ab3", "#9bbbd9", "#d9822b")
LINES, DASHES = ("#16325c", "#3d7ab3", "#d9822b"), ("-", (0, (5, 1.5)), (0, (1.5, 1)))


def panel(title: str, says: str, right: float = 0.84, left: float = 0.07):
    """(figure, axes) with the axes' right end at the fraction `right`: beyond it there is room for labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(SIZE, DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left, 0.16, right - left, 0.66))
    axes.tick_params(labelsize=8.5, colors=INK, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.text(0.008, 0.935, title, fontsize=10.5, fontweight="bold", color=INK)
    figure.text(0.008, 0.865, says, fontsize=8, color=FAINT)
    return figure, axes


def png(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
