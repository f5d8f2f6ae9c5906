"""A limit on the processor time of processes: a control group with a quota.

Knows: control groups of versions 1 and 2. Does not know: the processes.

So a test can make processes run as on a machine a quarter as fast. Needs root, and writable control groups.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from cotswold.errors import MachineError, UserError

PERIOD_US = 10_000
"""Period of a quota in microseconds: short, so that even a fraction of a second spans many periods."""
_QUOTA_US_LEAST = 1000  # the kernel's minimum
_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "cotswold"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\d+")
_SERIAL = itertools.count()
_LEAVING_SECONDS = 5.0


class CpuQuota:
    """A limit on processor time for a `with` block; `add` puts processes under it.

    Their children are limited, too. At the end of the block all of them have the whole machine again.

    Args:
        cores: Number of cores that all processes together may use, such as 0.25; at least 0.01.

    Raises:
        UserError: ``cores`` is out of range.
        MachineError: Control groups cannot be created; see `why_no_quota`.
    """

    def __init__(self, cores: float) -> None:
        if not 0.01 <= cores <= 4096:
            raise UserError(f"cores must be 0.01 to 4096, got {cores}")
        self._period_us = max(PERIOD_US, round(_QUOTA_US_LEAST / cores))
        self._quota_us = round(cores * self._period_us)
        self._parent = _parent()
        self._folder = self._parent / f"{_PREFIX}-{os.getpid()}-{next(_SERIAL)}"

    def __enter__(self) -> CpuQuota:
        try:
            remove_leftovers(self._parent)
            self._folder.mkdir()
            if _is_unified(self._parent):
                (self._folder / "cpu.max").write_text(f"{self._quota_us} {self._period_us}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(self._period_us))
                (self._folder / "cpu.cfs_quota_us").write_text(str(self._quota_us))
        except OSError as error:
            self._remove()
            raise _impossible(f"{error.strerror}: {error.filename}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def add(self, pid: int) -> None:
        """Put a process with all its threads under the quota.

        Args:
            pid: Process id.

        Raises:
            MachineError: The process has ended.
        """
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise MachineError(f"cannot set a quota for process {pid}: {error.strerror}") from error

    def _remove(self) -> None:
        """Move the processes back to the parent group, then remove the group."""
        deadline = time.monotonic() + _LEAVING_SECONDS
        while self._folder.exists():
            for pid in (self._folder / "cgroup.procs").read_text().split():
                with suppress(OSError):  # it has just ended
                    (self._parent / "cgroup.procs").write_text(pid)
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def why_no_quota() -> str | None:
    """Return the reason why quotas cannot be set on this machine; None if they can."""
    try:
        with CpuQuota(0.5):
            return None
    except MachineError as error:
        return str(error)


def remove_leftovers(parent: Path) -> None:
    """Remove empty groups that killed processes have left behind."""
    for entry in parent.glob(f"{_PREFIX}-*"):
        owner = _NAME.fullmatch(entry.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            with suppress(OSError):
                entry.rmdir()


def _parent() -> Path:
    """Control group of this process that controls CPU time; quotas are created below it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise _impossible("/proc/self/cgroup is missing") from error
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            found = _ROOT / "cpu" / path.lstrip("/")
        elif controllers == "" and (_ROOT / "cgroup.controllers").exists():
            found = _ROOT / path.lstrip("/")
            if found != _ROOT:  # a group with processes cannot enable controllers for children
                found = found.parent
        else:
            continue
        if found.is_dir():
            return found
    raise _impossible("there is no cpu controller")


def _is_unified(parent: Path) -> bool:
    return (parent / "cgroup.controllers").exists()


def _impossible(why: str) -> MachineError:
    return MachineError(
        f"cannot set a quota for processes ({why}); run as root on a Linux with writable control groups"
    )
