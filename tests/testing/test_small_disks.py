"""Disks of a few MiB."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from cotswold.errors import UserError
from cotswold.testing import SmallDisk, why_no_disks

WHY_NOT = why_no_disks()
needed = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def mounted() -> list[str]:
    return [line.split()[0] for line in Path("/proc/mounts").read_text().splitlines()]


@needed
def test_a_disk_that_is_full_refuses_until_it_is_emptied(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 2) as disk:
        (disk.folder / "before").write_bytes(bytes(1 << 20))
        disk.fill()
        assert disk.free_bytes == 0
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.folder / "after").write_bytes(bytes(1 << 16))
        assert (disk.folder / "before").stat().st_size == 1 << 20
        disk.empty()
        (disk.folder / "after").write_bytes(bytes(1 << 16))
    assert not [*disk.folder.iterdir()]


@needed
def test_a_disk_is_gone_after_an_exception_and_so_is_that_of_a_killed_process(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"cotswold-disk-{gone.pid}-0"
    (tmp_path / "left").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", left, str(tmp_path / "left")], check=True)

    def fail() -> None:
        with SmallDisk(tmp_path / "disk", 1):
            assert any(f"-{os.getpid()}-" in name for name in mounted())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert left not in mounted() and not any(f"cotswold-disk-{os.getpid()}-" in name for name in mounted())


@pytest.mark.parametrize("mib", [0, -1, 100_000])
def test_a_disk_of_no_size_is_refused(mib: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mib must be 1 to"):
        SmallDisk(tmp_path, mib)
