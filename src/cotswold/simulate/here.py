"""The machine that one is on, described without measuring it.

Knows: how many cores there are, memory and cache that the system tells of. Does not know: how fast they are;
rates are those of a core of the reference machine, which serve to compare grids.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.host import available_bytes, granted_cores
from cotswold.simulate.cluster import Cluster
from cotswold.simulate.reader import load_cluster

CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3")
UNITS = {"K": 1 << 10, "M": 1 << 20}


def this_machine() -> Cluster:
    """The shipped cluster `core`, with as many cores, as much memory and as large a cache as there are here.

    Describe it by `cotswold bench machine` for predictions of seconds.
    """
    cores = granted_cores(environ={})
    core = load_cluster("core")
    cache = _cache_bytes() / 1e6
    device = core.device.model_copy(update={"cache_mb": cache} if cache else {})
    here = {"name": "this machine", "devices": cores, "host_memory_gb": available_bytes() / 1e9}
    return core.model_copy(update={**here, "device": device})


def _cache_bytes() -> float:
    """A core's part of the last cache; 0 where the system does not tell."""
    try:
        words = (CACHE / "size").read_text(encoding="ascii").strip()
        sharing = (CACHE / "shared_cpu_list").read_text(encoding="ascii").strip()
    except OSError:
        return 0
    number, unit = words[:-1], words[-1:]
    return int(number) * UNITS[unit] / _counted(sharing) if number.isdigit() and unit in UNITS else 0


def _counted(cores: str) -> int:
    """How many a list such as 0-3,8 names."""
    ends = [part.partition("-") for part in cores.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
