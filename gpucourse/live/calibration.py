"""The learner's guesses against what was found, in the order in which they were given: a calibration curve."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from gpucourse.evidence import columns_text
from gpucourse.live.panel import page, png
from gpucourse.live.picture import EACH, GRID, INK, RATE

LATELY = 5  # guesses in the running median


@dataclass(frozen=True)
class Calibration:
    """guesses: (id, quantity, guess ÷ what was found), oldest first. Text without guesses, else a picture."""

    guesses: tuple[tuple[str, str, float], ...]

    @property
    def factors(self) -> list[float]:
        """How many times too high or too low each guess was, at least 1."""
        return [max(ratio, 1 / ratio) for _, _, ratio in self.guesses]

    def __str__(self) -> str:
        if not self.guesses:
            return "No guess has been held against a measurement yet: the curve begins with your first one."
        rows = [["guess", "of", "guess ÷ found"], *([id, of, f"{ratio:.3g}"] for id, of, ratio in self.guesses)]
        return columns_text(rows, left=2) + f"\ntypically off by a factor of {median(self.factors):.3g}"

    __repr__ = __str__

    def _repr_png_(self) -> bytes | None:
        return drawn(self) if self.guesses else None


def calibration(events: Iterable[Mapping]) -> Calibration:
    """The guesses of a progress file's events that were held against something, each with its latest outcome.

    A guess of 0, or one of which nothing was found, has no factor and is left out.
    """
    latest = {}
    for event in events:
        if event["event"] == "off":
            latest |= {(event["exercise"], of): off + 1 for of, off in event["off"].items()}
    return Calibration(tuple((id, of, ratio) for (id, of), ratio in latest.items() if ratio > 0))


def drawn(shown: Calibration) -> bytes:
    places, factors = range(1, len(shown.guesses) + 1), shown.factors
    lately = [median(factors[max(0, place - LATELY):place]) for place in places]
    figure, (axes,) = page(f"Your last guesses were off by a factor of {lately[-1]:.3g}",
                           f"too high or too low, in the order given; dark: median of the last {LATELY}; "
                           "grey band: within a factor of 2", (0.075, 0.2, 0.9, 0.58), height=2.6, grid="y")
    axes.axhspan(1, 2, color=GRID, alpha=0.5, linewidth=0)
    axes.plot(places, factors, "o", color=EACH, markersize=6, markeredgecolor=INK, markeredgewidth=0.4)
    axes.plot(places, lately, color=RATE, linewidth=2)
    axes.set(yscale="log", xlim=(0.5, len(places) + 0.5), ylim=(0.9, max(12, *factors) * 1.3))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.yaxis.set_minor_formatter("")
    lessons = [id.partition(".")[0] for id, _, _ in shown.guesses]
    firsts = [place for place in places if lessons[place - 1] not in lessons[:place - 1]]
    axes.set_xticks(firsts, [f"lesson {lessons[place - 1]}" for place in firsts])
    return png(figure)
