"""A share of a core for processes: a control group with a quota of processor time.

Knows: control groups of versions 1 and 2. Does not know: who runs in them.

So a test has a machine that is a quarter as fast. Needs root, and control groups that may be written.
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
"""The time over which a quota holds: short, or an evaluation of a fraction of a second would see all or none
of it."""
_QUOTA_US_LEAST = 1000  # the kernel's own
_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "cotswold"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-\d+")
_SERIAL = itertools.count()
_LEAVING_SECONDS = 5.0


class CpuQuota:
    """Processes that have ``cores`` in sum, such as 0.25; use in a `with` statement, and `add` them.

    What they start belongs to it as well. At the end of the block they have the whole machine again. Raises
    UserError for less than a hundredth of a core, MachineError where there are no control groups to be made.
    """

    def __init__(self, cores: float) -> None:
        if not 0.01 <= cores <= 4096:
            raise UserError(f"a quota of {cores} cores cannot be had; ask for 0.01 and more")
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
        """Put a process under the quota, all its threads too; raises MachineError where it is gone."""
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise MachineError(f"process {pid} cannot be given a quota: {error.strerror}") from error

    def _remove(self) -> None:
        """Let the processes go where they came from, then remove the group."""
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
    """Why processes cannot be given a quota on this machine, in a sentence; None where they can."""
    try:
        with CpuQuota(0.5):
            return None
    except MachineError as error:
        return str(error)


def remove_leftovers(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could, unless somebody is in them."""
    for entry in parent.glob(f"{_PREFIX}-*"):
        owner = _NAME.fullmatch(entry.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            with suppress(OSError):
                entry.rmdir()


def _parent() -> Path:
    """The control group of this process that has to do with processors: quotas are made below it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise _impossible("there is no /proc/self/cgroup") from error
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            found = _ROOT / "cpu" / path.lstrip("/")
        elif controllers == "" and (_ROOT / "cgroup.controllers").exists():
            found = _ROOT / path.lstrip("/")
            if found != _ROOT:  # below a group that has processes none may have controllers
                found = found.parent
        else:
            continue
        if found.is_dir():
            return found
    raise _impossible("there is no controller of processors")


def _is_unified(parent: Path) -> bool:
    return (parent / "cgroup.controllers").exists()


def _impossible(why: str) -> MachineError:
    return MachineError(
        f"processes cannot be given a quota here ({why}); run as root on a Linux whose control groups may be "
        "written"
    )
