"""A small checkout of one's own, whose lessons the tests write."""

import pytest

from gpucourse.course.checkout import Checkout

HEAD = """# %% [markdown]
# # {number} · {title}
#
# One sentence.
#
# **Minutes** 5 · **Hardware** cpu, gpu · **Needs** –

# %%
from gpucourse import record

# %% tags=["parameters"]
profile: str = "auto"  # auto, smoke or full
world_size: int = 0  # 0: all
seed: int = 0  # of the random numbers
"""

EXERCISE = """
# %% [markdown]
# ### {number}.1 A sum

# %% tags=["stub"] exercise="{number}.1"
answer_1 = ...

# %% tags=["solution"] exercise="{number}.1"
answer_1 = 1 + 1

# %% exercise="{number}.1" tags=["check", "nbval-check-output"]
print("answer", answer_1)
"""


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """An empty checkout in a temporary folder."""
    made = Checkout(tmp_path / "checkout")
    for folder in (made.notebooks, made.solutions, made.data, made.root / "gpucourse"):
        folder.mkdir(parents=True)
    (made.root / "constraints.txt").write_text("torch==2.13.0\n")
    return made


@pytest.fixture
def lesson(checkout):
    """Write a lesson's source: lesson("01_sums", more cells) → its path."""
    def write(name: str, cells: str = ""):
        number, title = name[:2], name[3:].replace("_", " ").capitalize()
        path = checkout.solutions / f"{name}.py"
        path.write_text(HEAD.format(number=number, title=title) + EXERCISE.format(number=number) + cells)
        return path
    return write
