"""Folders of saved buckets: written atomically, verified when read."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.replication.disk.test_rebuilt_index import spoil, tables

from cotswold.errors import DiskFullError, FormatError, MachineError, UserError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot, DamagedError
from cotswold.replication.disk.bucket_format import read_saved, snapshot_of, write_saved
from cotswold.replication.disk.index import Database
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.runtime.disk import Disk, open_disk
from cotswold.wire import BucketChange

BYTES, VECTORS = 8192, ("weights", "squares")


def saved(number: int) -> SavedBucket:
    change = BucketChange((0, 3), (number, 7), (), (), (), (), (), 0, 0, None, None, 0)
    numbers = {(name, shard): contents(number, name, shard) for name in VECTORS for shard in (0, 3)}
    return SavedBucket(f"run/{number}", 0, number + 1, 10 * number, change, VECTORS, numbers)


def contents(number: int, name: str, shard: int) -> bytes:
    return random.Random(f"{number} {name} {shard}").randbytes(BYTES)


def flip(folder: Path, content: bytes) -> None:
    """Flip a bit of given contents in a folder."""
    (place,) = (each for each in folder.rglob("*") if each.is_file() and content in each.read_bytes())
    whole = bytearray(place.read_bytes())
    whole[whole.index(content) + 100] ^= 4
    place.write_bytes(whole)


def test_buckets_that_were_written_are_read_with_their_ranks_and_versions(tmp_path: Path) -> None:
    folder, wanted = tmp_path / "saved", [saved(number) for number in (1, 2, 3)]
    write_saved(folder, reversed(wanted))
    assert list(read_saved(folder)) == wanted
    first = next(read_saved(folder))
    assert (first.bucket, first.recency, first.change.versions) == ("run/1", (0, 2, 10), (1, 7))
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


def test_a_server_goes_on_with_such_a_folder_as_its_disk(tmp_path: Path) -> None:
    write_saved(tmp_path / "saved", [saved(1)])
    found: list[SavedBucket | None] = []
    with Disk(tmp_path / "saved", 1.0, lambda _: None, lambda _: None, lambda _: None) as disk:
        disk.read("run/1", found.append)
        while not found:
            disk.run_callbacks()
    assert found == [saved(1)]


def test_a_server_says_that_its_index_is_damaged_and_has_its_disk_written_to(tmp_path: Path) -> None:
    folder, said, written = tmp_path / "disk", list[str](), list[int]()
    with BlockStore(folder) as store:
        store.write(snapshot_of(saved(1), 1), snapshot_of(saved(2), 2))
        store.write(snapshot_of(saved(2), 3))
    oldest, newest = sorted((folder / "db").glob("*.sst"))
    for place in (oldest, newest):
        whole = bytearray(place.read_bytes())
        whole[-4] ^= 1
        place.write_bytes(whole)
    with open_disk(folder, 0.1, written.append, lambda _: None, said.append) as disk:
        assert disk.buckets == (), "no table can be opened"
        assert disk.write(1, saved(1), time.monotonic())
        deadline = time.monotonic() + 30
        while not written:
            assert time.monotonic() < deadline, said
            disk.run_callbacks()
    (sentence,) = said
    assert "was rebuilt with the heads of 0 buckets" in sentence
    assert list(read_saved(folder)) == [saved(1)]


def test_what_a_damaged_index_has_is_offered_though_there_is_no_room_to_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = tmp_path / "disk", list[str]()
    with BlockStore(folder) as store:
        store.write(snapshot_of(saved(1), 1), snapshot_of(saved(2), 2))
        store.write(snapshot_of(saved(2), 3))
    spoil(tables(folder)[-1], 0.2)

    def full(self: Database, puts: object) -> None:
        raise DiskFullError("no room left")

    monkeypatch.setattr(Database, "start_over", full)
    with open_disk(folder, 0.1, lambda _: None, lambda _: None, said.append) as disk:
        assert disk.buckets == ("run/1", "run/2") and disk._first == 2
    assert "damaged" in said[0]


def test_the_disk_of_another_version_is_left_as_it_is_and_named(tmp_path: Path) -> None:
    folder, said = tmp_path / "disk", list[str]()
    write_saved(folder, [saved(1)])
    (folder / "format.json").write_text('{"blocks": 99}')
    with pytest.raises(FormatError, match="use the version that wrote it"):
        open_disk(folder, 1.0, lambda _: None, lambda _: None, said.append)
    assert [each.name for each in tmp_path.iterdir()] == ["disk"] and not said


def test_nothing_is_there_where_writing_did_not_come_to_its_end(tmp_path: Path) -> None:
    def interrupted() -> Iterator[SavedBucket]:
        yield saved(1)
        raise MachineError("a server is gone; try again")

    with pytest.raises(MachineError, match="a server is gone"):
        write_saved(tmp_path / "saved", interrupted())
    assert not list(tmp_path.iterdir())
    write_saved(tmp_path / "saved", [saved(1)])
    with pytest.raises(UserError, match="saved already exists; choose another"):
        write_saved(tmp_path / "saved", [saved(2)])
    assert list(read_saved(tmp_path / "saved")) == [saved(1)]


def test_every_damaged_bucket_is_named_after_the_sound_ones_were_read(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    write_saved(folder, map(saved, (1, 2, 3, 4)))
    flip(folder, contents(2, "squares", 3))
    flip(folder, contents(4, "weights", 0))
    found, named = (
        list[SavedBucket](),
        r"saved is damaged: run/2, squares, shard 3 .*; run/4, weights, shard 0 ",
    )
    with pytest.raises(DamagedError, match=named):
        found.extend(read_saved(folder))
    assert found == [saved(1), saved(3)]


def test_a_folder_without_saved_buckets_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no saved buckets; name a folder"):
        list(read_saved(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()


def test_a_head_that_is_no_buckets_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with BlockStore(folder) as store:
        store.write(BucketSnapshot("run/1", 1, b"head", {BlockKey("weights", 0): b"x"}))
    with pytest.raises(DamagedError, match=r"head of run/1 \(its head is not that of a bucket"):
        list(read_saved(folder))
