"""Hardware and software of a run, to explain its speed later.

Knows: versions, processor, threads, memory. Does not know: names of hosts or users, for privacy.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from cotswold.host import granted_cores
from cotswold.host.memory import available_bytes
from cotswold.kernels.machine.cuda_devices import cuda_device_count

_PACKAGES = ("cotswold", "torch", "numpy", "zarr", "safetensors", "pillow", "pydantic")


def describe_environment() -> dict[str, object]:
    """Return versions, processor and its instructions, cores, threads, memory in bytes, CUDA devices."""
    model, flags = _processor()
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": model,
        "processor_flags": flags,
        "cores": os.cpu_count(),
        "cores_usable": granted_cores(environ={}),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_available_bytes": available_bytes(),
        "cuda": _devices(cuda_device_count(), Path("/proc/driver/nvidia/gpus")),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices(count: int, drivers: Path) -> list[str]:
    """Return the names of ``count`` CUDA devices, from the driver's folder if it lists them.

    It does not call CUDA: after that, a program cannot fork processes that use CUDA.
    """
    try:
        told = [each.read_text() for each in sorted(drivers.glob("*/information"))]
    except OSError:
        told = []
    models = [_fields(text).get("Model", "CUDA device") for text in told]
    return models if len(models) == count else ["CUDA device"] * count


def _processor() -> tuple[str, list[str]]:
    """Return the processor's model and its sorted instruction set flags, empty if unknown."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip(), []
    return parse_cpuinfo(Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")


def parse_cpuinfo(text: str) -> tuple[str, list[str]]:
    """Return model and flags from the text of /proc/cpuinfo, which differs between x86 and ARM."""
    fields = _fields(text)
    model = fields.get("model name") or fields.get("Hardware") or platform.processor() or platform.machine()
    return model, sorted((fields.get("flags") or fields.get("Features") or "").split())


def _fields(text: str) -> dict[str, str]:
    """Return the first value of each key in lines of ``key: value``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields
