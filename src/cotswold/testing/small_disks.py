"""Disks of a few MiB that tests can fill and empty while programs write to them.

Knows: file systems in memory (tmpfs), /proc/mounts. Does not know: the writers. Needs root and Linux.
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
    """A small disk for a `with` block; it is unmounted at the end.

    Args:
        folder: Mount point; it is created.
        mib: Size in MiB, 1 to 4096.

    Raises:
        UserError: ``mib`` is out of range.
        MachineError: The disk cannot be mounted; see `why_no_disks`.
    """

    def __init__(self, folder: Path, mib: int) -> None:
        if not 1 <= mib <= MIB_MOST:
            raise UserError(f"a disk of {mib} MiB was requested; mib must be 1 to {MIB_MOST}")
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
        """Bytes that can still be written."""
        return shutil.disk_usage(self.folder).free

    def fill(self) -> None:
        """Fill the disk: further writes fail with ENOSPC until `empty`."""
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
        """Free the space that `fill` took."""
        (self.folder / _FILLING).unlink(missing_ok=True)


def why_no_disks() -> str | None:
    """Return the reason why disks cannot be created on this machine; None if they can."""
    if os.geteuid() != 0 or not _MOUNTS.exists():
        return "small disks need root and Linux; run as root"
    return None


def remove_left_disks() -> None:
    """Unmount disks that killed processes have left behind."""
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
            f"cannot create small disks: '{' '.join(words)}' failed with '{' '.join(done.stderr.split())}'; "
            "run as root on Linux"
        )
