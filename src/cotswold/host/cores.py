"""How many cores this process may use.

Knows: affinity, quotas of control groups (versions 1 and 2), ``OMP_NUM_THREADS``. Does not know: who
computes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def granted_cores(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
    """Cores that this process is granted, at least 1: the least of the machine's, the affinity mask's, the
    quota's of every control group above it (a quota of 1.5 cores grants 1), and ``OMP_NUM_THREADS`` in
    ``environ``, which speaks of the threads of one process: who divides cores among several leaves it out.
    """
    grants = [os.cpu_count() or 1, *_quotas(root)]
    if hasattr(os, "sched_getaffinity"):
        grants.append(len(os.sched_getaffinity(0)))
    wish = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is one number a nesting level
    if wish.isascii() and wish.isdigit() and int(wish) > 0:
        grants.append(int(wish))
    return max(min(grants), 1)


def _quotas(root: Path) -> list[int]:
    """Whole cores that each control group of this process grants; groups without a quota are left out."""
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
        # in a container the path may be the host's, and the mount show the container's own group at its root
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
