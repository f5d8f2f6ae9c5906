"""Disks of a few MiB that can be filled, and emptied again, while others write to them.

Knows: file systems in memory (tmpfs), /proc/mounts. Does not know: who writes there. Needs root and Linux.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from cotswold.errors import MachineError, UserError

MIB_MOST = 4096
_PREFIX = "cotswold-disk"
_SOURCE = re.compile(rf"{_PREFIX}-(\d+)-\d+")
_MOUNTS = Path("/proc/mounts")
_SERIAL = itertools.count()
_TIMEOUT_SECONDS = 30
_FILLING = ".filling"
_BLOCK_BYTES = 1 << 16


class SmallDisk:
    """A disk of ``mib`` MiB at ``folder``, which is made; use in a `with` statement, and then it is gone.

    Raises UserError for a size that is none, MachineError where nothing can be mounted.
    """

    def __init__(self, folder: Path, mib: int) -> None:
        if not 1 <= mib <= MIB_MOST:
            raise UserError(f"a disk of {mib} MiB cannot be made here; ask for 1 to {MIB_MOST}")
        self.folder, self._mib = folder.absolute(), mib
        self._source = f"{_PREFIX}-{os.getpid()}-{next(_SERIAL)}"

    def __enter__(self) -> SmallDisk:
        remove_left_disks()
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._mib}m,mode=755", self._source, str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.folder))

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        return shutil.disk_usage(self.folder).free

    def fill(self) -> None:
        """Take all that is left; whoever writes is told that no space is left on the device."""
        file = os.open(self.folder / _FILLING, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while True:
                os.write(file, bytes(_BLOCK_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(file)

    def empty(self) -> None:
        """Give back what `fill` took."""
        (self.folder / _FILLING).unlink(missing_ok=True)


def why_no_disks() -> str | None:
    """Why disks cannot be made on this machine, in a sentence; None where they can."""
    if os.geteuid() != 0 or not _MOUNTS.exists():
        return "small disks need root and Linux; run as root"
    return None


def remove_left_disks() -> None:
    """Unmount the disks of processes that were killed before they could."""
    for line in _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else ():
        source, folder, *_ = line.split()
        owner = _SOURCE.fullmatch(source)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            with suppress(MachineError):  # another process may do so at the same moment
                _run("umount", "--lazy", folder.encode().decode("unicode_escape"))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise MachineError(
            f"small disks cannot be made here: '{' '.join(words)}' said "
            f"'{' '.join(done.stderr.split())}'; run as root on Linux"
        )
