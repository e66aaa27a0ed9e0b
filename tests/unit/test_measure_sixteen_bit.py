"""Real and emulated 16-bit products told apart."""

import platform

import pytest

from gpucourse.measure.devices import device
from gpucourse.measure.sixteen_bit import sixteen_bit, without_instructions


def test_it_says_what_the_library_says_of_this_device():
    seen = sixteen_bit()
    assert seen.real == device().bf16 and set(seen.ratios) == {"bf16", "fp16"}
    assert ("real" if seen.real else "emulated") in str(seen) and device().label in str(seen)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the library hides instructions on x86 only")
def test_with_its_instructions_hidden_a_cpu_emulates():
    seen = without_instructions()
    assert not seen.real and "emulated" in str(seen) and set(seen.ratios) == {"bf16", "fp16"}
    print(seen)  # how much slower is this CPU's to say, and lesson 04's to measure
