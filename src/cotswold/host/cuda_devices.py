"""How many CUDA devices there are, found out so that forks of this process can use them.

Knows: what torch asks, and when that is the runtime of CUDA, after which no fork can use CUDA. Does not
know: who uses the devices.
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
"""The longest that a process may take to import torch and count."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import torch; print(torch.cuda.device_count())"
)
_DRIVER = "libcuda.so.1"


def cuda_device_count() -> int:
    """CUDA devices that torch would use here; 0 where it cannot.

    ``torch.cuda.device_count()`` asks the runtime of CUDA where the driver's library (NVML) does not say: it
    is missing, or ``CUDA_VISIBLE_DEVICES`` names parts of a device (``MIG-...``). There a short process asks.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch gives it no types
        return 0
    told = -1 if torch.version.hip else torch.cuda._device_count_nvml()
    return told if told >= 0 else _counted_apart(os.environ.get("CUDA_VISIBLE_DEVICES"))


@cache
def _counted_apart(visible: str | None) -> int:
    """As a process of its own counts, which has the environment of this one; ``visible`` is of that."""
    if not (torch.version.hip or _has_driver()):
        return 0
    words = [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)
        return int(done.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def _has_driver() -> bool:
    """Whether the library is there without which CUDA has no device; loading it asks nothing."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
