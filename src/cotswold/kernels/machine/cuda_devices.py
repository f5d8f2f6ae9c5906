"""Count CUDA devices without making CUDA unusable in forks of this process.

Knows: how torch counts, and when torch initialises the CUDA runtime, after which forks cannot use CUDA. Does
not know: who uses the devices.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from functools import cache

import torch

_SECONDS = 120.0
"""Timeout in seconds for a process that imports torch and counts."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import torch; print(torch.cuda.device_count())"
)
_DRIVER = "libcuda.so.1"


def cuda_device_count() -> int:
    """Return the number of CUDA devices that torch would use here; 0 if it cannot use CUDA.

    ``torch.cuda.device_count()`` calls the CUDA runtime if the driver's library (NVML) gives no answer: if it
    is missing, or if ``CUDA_VISIBLE_DEVICES`` names parts of a device (``MIG-...``). In these cases a
    short-lived process counts.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch gives it no types
        return 0
    count = -1 if torch.version.hip else torch.cuda._device_count_nvml()
    return count if count >= 0 else _count_in_subprocess(os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def _count_in_subprocess(visible: str | None) -> int:
    """Count in a separate process; ``visible`` (CUDA_VISIBLE_DEVICES) is the key of the cache."""
    if not (torch.version.hip or _has_driver()):
        return 0
    words = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def _has_driver() -> bool:
    """True if the driver's library can be loaded; without it CUDA has no device."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
