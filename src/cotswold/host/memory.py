"""The amount of memory that this process may still allocate.

Knows: limits of control groups (versions 1 and 2), /proc/meminfo, sysconf. Does not know: what needs memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from cotswold.errors import MemoryLimitError, UserError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's options in malloc.h."""
_MALLOPT_MOST = 2**31 - 1
"""Largest value that mallopt takes."""
_OLD_GLIBC_MOST = 32 << 20
"""Largest block that older versions of glibc keep; they refuse a higher threshold."""
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``, which Python names from 3.13 on: reserves address space without memory."""
_UNLIMITED = 1 << 60
"""Limit from which a value counts as unlimited: version 1 writes a number near 2^63."""


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process may still allocate: the minimum over the machine and each control group.

    If the machine does not report its free memory (macOS), the result is all installed memory.
    """
    free = [each for each in (_meminfo(root), *_groups_free_bytes(root)) if each is not None]
    return min(free) if free else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(
    needed_bytes: int, what: str, remedy: str = "make it smaller or use a larger machine"
) -> None:
    """Raise MemoryLimitError with the figures if ``what`` needs more memory than is available."""
    available = available_bytes()
    if needed_bytes > available:
        raise MemoryLimitError(
            f"{what} needs {needed_bytes / 1e9:.1f} GB of memory, but only {available / 1e9:.1f} GB are "
            "free; " + remedy
        )


def keep_freed_memory(limit_bytes: int = 512 << 20) -> bool:
    """Make this process keep memory that it frees, for its next tensors.

    By default, glibc returns blocks of more than 32 MiB to the operating system as soon as they are freed. A
    training step then gets each page of its gradients again, by a page fault, and the system fills it with
    zeros. With a limit, freed blocks stay with the process until it ends. So other processes cannot use them,
    and the process stays as large as its largest step. The setting applies to the whole process, to every
    library in it.

    `cotswold.train` and the servers call this function; call it once at the start of a loop of your own.

    Args:
        limit_bytes: Size of a block up to which freed memory is kept, and bytes that may be free at the end
            of the heap; at most 2 GiB - 1. Larger blocks are returned when they are freed.

    Returns:
        True if the C library accepted the limit. False if it keeps only smaller blocks: older versions of
        glibc refuse more than 32 MiB, so that they keep blocks up to 32 MiB, as by default, and return larger
        ones. False also with other C libraries, such as those of macOS and Alpine Linux (musl), where this
        function does nothing.

    Raises:
        UserError: If the limit is no integer, or less than 1.
    """
    if isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int) or limit_bytes < 1:
        raise UserError(f"limit_bytes is a number of bytes from 1 on, as 512 << 20; got {limit_bytes!r}")
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    most = min(limit_bytes, _MALLOPT_MOST)
    # the threshold of blocks first: either option turns off glibc's automatic one, which reaches 32 MiB
    for block in (most, min(most, _OLD_GLIBC_MOST)):
        if mallopt(_MMAP_THRESHOLD, block):
            return bool(mallopt(_TRIM_THRESHOLD, most)) and block == limit_bytes
    return False


def _meminfo(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups_free_bytes(root: Path) -> list[int]:
    free = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's, while the mount shows the container's group at its root.
        inner = base / path.lstrip("/")
        folders = [inner, *inner.parents[: len(inner.relative_to(base).parts)]]
        free += [each for folder in folders if (each := _group_free_bytes(folder, *names)) is not None]
    return free


def _group_free_bytes(folder: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _text(folder / limit_name).strip(), _text(folder / used_name).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _UNLIMITED:
        return None
    # Unused pages of the file cache count as used, but are freed on demand.
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
