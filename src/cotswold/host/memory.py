"""How much memory there is for the taking.

Knows: limits of control groups (versions 1 and 2), /proc/meminfo, sysconf. Does not know: who wants it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from cotswold.errors import MemoryLimitError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's options in malloc.h."""
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``, which Python names from 3.13 on: address space alone promises no memory."""
_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the least of what the machine has free and each group allows.

    Where the machine does not say what is free (macOS), all that is built in.
    """
    rooms = [room for room in (_meminfo(root), *_groups(root)) if room is not None]
    return min(rooms) if rooms else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(
    needed_bytes: int, what: str, remedy: str = "make it smaller or use a larger machine"
) -> None:
    """Raise MemoryLimitError, with the figures, if ``what`` needs more than there is."""
    available = available_bytes()
    if needed_bytes > available:
        raise MemoryLimitError(
            f"{what} needs {needed_bytes / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are free; "
            + remedy
        )


def keep_freed_bytes(most: int = 512 << 20) -> None:
    """Let the C library keep freed memory for the next maps, up to ``most`` bytes, where it is glibc.

    By default it hands maps back to the kernel after every step and takes them again page by page, which
    costs a fifth of a step on small maps.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, most)
        mallopt(_MMAP_THRESHOLD, most)


def _meminfo(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups(root: Path) -> list[int]:
    rooms = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # in a container the path may be the host's, and the mount show the container's own group at its root
        inner = base / path.lstrip("/")
        folders = [inner, *inner.parents[: len(inner.relative_to(base).parts)]]
        rooms += [room for folder in folders if (room := _room(folder, *names)) is not None]
    return rooms


def _room(folder: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _text(folder / limit_name).strip(), _text(folder / used_name).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _UNLIMITED:
        return None
    # pages of files that nobody uses count as used, but are given up on demand
    cache = [
        line.split()[1]
        for line in _text(folder / "memory.stat").splitlines()
        if line.startswith(f"{cache_name} ")
    ]
    return max(int(limit) - int(used) + int(cache[0] if cache else 0), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
