# %% [markdown]
# # 98 · Example

# %% tags=["parameters"]
seed = 0

# %%
from gpucourse import check, guess

# %% tags=["setup"]
def twice(value):
    return value + value

# %%
mine = guess("98.g1", ..., "GiB")
each = guess("98.g2", {"neither": ..., "pinned": ...}, "ms a step")
peak = 1 / 0  # the lesson's experiment, which the test does not run

# %% [markdown]
# ### 98.1 Bytes a parameter

# %% tags=["stub"] exercise="98.1"
answer_1 = ...

# %% tags=["solution"] exercise="98.1"
answer_1 = 4 + 4 + twice(4)

# %% tags=["check"] exercise="98.1"
check("98.1", answer_1)

# %% tags=["stub"] exercise="98.2"
answer_2 = ...

# %% tags=["solution"] exercise="98.2"
answer_2 = peak / 1024**3

# %% tags=["check"] exercise="98.2"
check("98.2", answer_2, given=peak)

# %% tags=["stub"] exercise="98.3"
answer_3 = ...

# %% tags=["solution"] exercise="98.3"
answer_3 = "b"

# %% tags=["check"] exercise="98.3"
check("98.3", answer_3)

# %% tags=["stub"] exercise="98.4"
answer_4 = {"weights": ..., "gradients": ..., "peak at": ...}

# %% tags=["solution"] exercise="98.4"
answer_4 = {"weights": 2, "gradients": 1, "peak at": "step"}

# %% tags=["check"] exercise="98.4"
check("98.4", answer_4)

# %% tags=["stub"] exercise="98.5"
def double(values, call):
    """Return twice the values; announce each copy by call(copy)."""
    ...

# %% tags=["solution"] exercise="98.5"
def double(values, call):
    call(values)
    return twice(values)

# %% tags=["check"] exercise="98.5"
check("98.5", double)

# %% tags=["stub"] exercise="98.6"
answer_6 = ...

# %% tags=["solution"] exercise="98.6"
answer_6 = 1

# %% tags=["check"] exercise="98.6"
check("98.6", answer_6)
