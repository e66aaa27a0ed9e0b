"""The example banks as lessons 97 and 98, and a state folder of the test's own."""

import sys
from pathlib import Path

import pytest

from gpucourse.exercises import bank

EXAMPLES = Path(__file__).parent / "example_bank"


@pytest.fixture
def examples(monkeypatch, tmp_path):
    """Lessons 97 and 98 are found; progress goes to the folder that is returned."""
    for name in ("GPUCOURSE_STRICT", "GPUCOURSE_SOLVED", "GPUCOURSE_RUN", "GPUCOURSE_LESSON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUCOURSE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(bank, "__path__", [*bank.__path__, str(EXAMPLES)])
    yield tmp_path / "state"
    for lesson in ("97", "98"):
        sys.modules.pop(f"gpucourse.exercises.bank.lesson_{lesson}", None)
