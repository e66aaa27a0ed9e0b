"""The size at which a lesson runs: `smoke` in a batch, `lab` while a person watches, `full` to fill the device."""

from gpucourse.errors import unknown
from gpucourse.settings import settings

PROFILES = ("auto", "smoke", "lab", "full")


def resolve(profile: str) -> str:
    """`auto` becomes `lab` when a person watches and `smoke` otherwise; the others stay as they are."""
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    return profile if profile != "auto" else "lab" if settings().interactive else "smoke"


def pick(profile: str, **sizes):
    """The value given for the profile in force: pick(profile, smoke=2, lab=8, full=64)."""
    name = resolve(profile)
    if name not in sizes:
        raise unknown("profile", name, sizes)
    return sizes[name]
