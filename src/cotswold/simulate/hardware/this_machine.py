"""A description of this machine without measurements.

Knows: the number of cores, memory and cache that the system reports. Does not know: their speed. Rates are
those of a core of the reference machine, which suffice to compare grids.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.host import available_bytes, granted_cores
from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.hardware.reader import load_cluster

CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3")
UNITS = {"K": 1 << 10, "M": 1 << 20}


def this_machine() -> Cluster:
    """Describe this machine: the shipped cluster `core` with this machine's cores, memory and cache.

    Use `cotswold bench machine` for a description with measured rates, which predicts seconds.

    Returns:
        The cluster.
    """
    cores = granted_cores(environ={})
    core = load_cluster("core")
    cache = _cache_bytes() / 1e6
    device = core.device.model_copy(update={"cache_mb": cache} if cache else {})
    here = {"name": "this machine", "devices": cores, "host_memory_gb": available_bytes() / 1e9}
    return core.model_copy(update={**here, "device": device})


def _cache_bytes() -> float:
    """A core's share of the last-level cache in bytes; 0 if the system does not report it."""
    try:
        words = (CACHE / "size").read_text(encoding="ascii").strip()
        sharing = (CACHE / "shared_cpu_list").read_text(encoding="ascii").strip()
    except OSError:
        return 0
    number, unit = words[:-1], words[-1:]
    return int(number) * UNITS[unit] / _count_cores(sharing) if number.isdigit() and unit in UNITS else 0


def _count_cores(cores: str) -> int:
    """Number of cores in a list such as 0-3,8."""
    ends = [part.partition("-") for part in cores.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
