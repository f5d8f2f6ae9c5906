"""A group of processes with a memory limit.

Knows: control groups of both versions. Does not know: the processes of a group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    """A control group made for one measurement."""

    path: Path
    version: int

    def join(self) -> None:
        """Move this process into the group; memory allocated from now on counts."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of the group, including cached files, or None if the kernel does not count it."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.path / name).read_text())
        except OSError:
            return None


@contextmanager
def memory_group(limit_bytes: int, root: Path = ROOT) -> Iterator[MemoryGroup | None]:
    """Yield a new group next to this process's group, or None if none can be made; remove it at the end.

    Processes that joined must have exited by then.
    """
    group = _made(limit_bytes, root)
    try:
        yield group
    finally:
        if group is not None:
            group.path.rmdir()


def _made(limit_bytes: int, root: Path) -> MemoryGroup | None:
    for version, parent, limits in (
        (1, root / "memory", ("memory.limit_in_bytes",)),
        (2, root, ("memory.max",)),
    ):
        path = parent / f"cotswold-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            for name in limits:
                file = path / name
                if not file.exists():  # no such controller
                    raise FileNotFoundError(file)
                file.write_text(str(limit_bytes))
            if version == 2 and (path / "memory.swap.max").exists():
                (path / "memory.swap.max").write_text("0")
        except OSError:
            path.rmdir()
            continue
        return MemoryGroup(path, version)
    return None
