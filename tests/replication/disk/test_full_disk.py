"""A disk that is full, and has space again."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotswold.errors import DiskFullError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot
from cotswold.replication.disk.index import Database

MIB = 1 << 20
KEY = BlockKey("weights", 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 48 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Leave only ``leave`` bytes free."""
    free = os.statvfs(disk)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    return filler


@pytest.mark.parametrize("leave", [0, 64 << 10, 3 * MIB])
@pytest.mark.parametrize("is_room_looked_for", [True, False])
def test_after_a_write_that_found_no_room_the_store_goes_on(
    disk: Path, leave: int, is_room_looked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_room_looked_for:  # somebody else takes it meanwhile
        monkeypatch.setattr(Database, "check_space", lambda self, wanted: None)
    first, second = (
        BucketSnapshot("bucket 1", at, b"", {KEY: random.Random(at).randbytes(4 * MIB)}) for at in (1, 2)
    )
    other = BucketSnapshot("bucket 2", 1, b"other", {})
    with BlockStore(disk / "store") as store:
        store.write(first, other)
        filler = fill(disk, leave)
        for _ in range(3):
            with pytest.raises(
                DiskFullError, match=r"no room left to write .*; free some space, what was written"
            ):
                store.write(second)
            assert set(store.heads()) == {"bucket 1", "bucket 2"}
            assert store.read("bucket 1").blocks[KEY] == first.blocks[KEY]
            assert store.read("bucket 2").head == b"other"
        filler.unlink()
        store.write(second)
    with BlockStore(disk / "store") as store:
        assert store.read("bucket 1").blocks[KEY] == second.blocks[KEY]
        assert store.read("bucket 2").head == b"other"


def test_a_store_on_a_full_disk_can_be_read(disk: Path) -> None:
    with BlockStore(disk / "store") as store:
        store.write(BucketSnapshot("bucket 1", 1, b"head", {KEY: b"x" * MIB}))
    fill(disk, 0)
    with BlockStore(disk / "store") as store:
        assert store.read("bucket 1").blocks[KEY] == b"x" * MIB
