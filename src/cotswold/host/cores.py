"""The number of cores that this process may use, and how its threads wait for each other.

Knows: affinity, quotas of control groups (versions 1 and 2), OpenMP's variables. Does not know: what
computes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SPINS = 5000
"""Spins of a waiting libgomp thread: 0.2 ms on a core of 2.6 GHz; libgomp's default of 300,000 takes 8 ms.

This exceeds the pause between two kernels of a layer, so small calls find the threads awake (25 microseconds
instead of 50).
"""
_SPIN_MS = 1
"""Milliseconds that a waiting libomp thread stays awake; libomp's default is 200."""


def granted_cores(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
    """Number of cores that this process may use, at least 1.

    It is the minimum of the machine's cores, the affinity mask, the quota of every control group above the
    process (a quota of 1.5 cores grants 1), and ``OMP_NUM_THREADS`` in ``environ``. That variable limits the
    threads of one process: leave it out to divide cores among several processes.
    """
    grants = [os.cpu_count() or 1, *_quotas(root)]
    if hasattr(os, "sched_getaffinity"):
        grants.append(len(os.sched_getaffinity(0)))
    wish = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list has one number per nesting level
    if wish.isascii() and wish.isdigit() and int(wish) > 0:
        grants.append(int(wish))
    return max(min(grants), 1)


def wait_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make waiting threads release their core after a moment.

    OpenMP reads them when it is loaded, so set them before torch is imported. Empty if the user has set
    ``OMP_WAIT_POLICY``, ``GOMP_SPINCOUNT`` or ``KMP_BLOCKTIME``.
    """
    ours = {"GOMP_SPINCOUNT": str(_SPINS), "KMP_BLOCKTIME": str(_SPIN_MS)}
    return {} if any(name in environ for name in (*ours, "OMP_WAIT_POLICY")) else ours


def _quotas(root: Path) -> list[int]:
    """Whole cores that each control group of this process grants; groups without a quota are skipped."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = next(
                (
                    root / "sys/fs/cgroup" / name
                    for name in (controllers, "cpu")
                    if (root / "sys/fs/cgroup" / name).is_dir()
                ),
                root / "sys/fs/cgroup/cpu",
            )
        else:
            continue
        # In a container the path may be the host's, while the mount shows the container's group at its root.
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents[: len(inner.relative_to(base).parts)]):
            quota = _quota(folder, unified=controllers == "")
            if quota is not None:
                found.append(quota)
    return found


def _quota(folder: Path, *, unified: bool) -> int | None:
    if unified:
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    else:
        quota = _text(folder / "cpu.cfs_quota_us").strip()  # -1: none
        period = _text(folder / "cpu.cfs_period_us").strip()
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return max(int(quota) // int(period), 1)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
