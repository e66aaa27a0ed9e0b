"""Devices and the driver: none, and one that answers nothing."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pynvml
import pytest
import torch

from gpucourse import measure
from gpucourse.measure.devices import device_of
from gpucourse.measure.nvml import DriverMonitor, DriverReading

NVML = ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage", "nvmlSystemGetDriverVersion")


@pytest.fixture
def driver(monkeypatch):
    """driver(name=answer or error): replaces what NVML's functions answer."""

    def set_answers(**answers):
        for name in NVML:
            answer = answers.get(name)

            def ask(*_, answer=answer):
                if isinstance(answer, pynvml.NVMLError):
                    raise answer
                return answer

            monkeypatch.setattr(pynvml, name, ask)

    return set_answers


def test_the_cpu_is_always_there_and_last():
    cpu = measure.devices()[-1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert (cpu.kind, cpu.torch, cpu.cores) == ("cpu", "cpu", cores)
    assert cpu.label == f"cpu ({cores} core{'s' * (cores > 1)})"
    assert cpu.capacity == psutil.virtual_memory().total
    assert 0 < cpu.available <= cpu.capacity


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity that can be set")
def test_cores_are_those_that_this_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" \
           "from gpucourse import measure; print(measure.devices()[-1].label)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert said.stdout.strip() == "cpu (1 core)"


def test_asking_for_devices_starts_no_cuda_without_a_gpu():
    code = ("import torch; from gpucourse import measure; measure.devices()\n"
            "print(measure.gpu_count(), measure.device().torch, torch.cuda.is_initialized())")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}).stdout
    assert said.split() == ["0", "cpu", "False"]


def test_the_device_of_tensors_and_modules():
    assert device_of("text", torch.zeros(1)).kind == "cpu"
    assert device_of(torch.nn.Linear(1, 1)).kind == "cpu"


def test_no_driver(driver):
    absent = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    driver(**dict.fromkeys(NVML, absent))
    assert measure.driver_version() is None
    assert DriverMonitor("GPU-0").read() == DriverReading(None, None, None, None)


def test_a_driver_that_reports_not_available(driver):
    absent = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver(nvmlDeviceGetHandleByUUID=object(), nvmlSystemGetDriverVersion="560.1", nvmlDeviceGetUtilizationRates=absent,
           nvmlDeviceGetPowerUsage=absent, nvmlDeviceGetMemoryInfo=SimpleNamespace(used=7, total=9))
    assert measure.driver_version() == "560.1"
    assert DriverMonitor("MIG-0").read() == DriverReading(used=7, total=9, busy=None, power=None)


def test_a_driver_that_reports_all(driver):
    driver(nvmlDeviceGetHandleByUUID=object(), nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=50),
           nvmlDeviceGetPowerUsage=70_500, nvmlDeviceGetMemoryInfo=SimpleNamespace(used=7, total=9))
    assert DriverMonitor("GPU-0").read() == DriverReading(used=7, total=9, busy=0.5, power=70.5)
