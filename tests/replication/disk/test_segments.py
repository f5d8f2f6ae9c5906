"""Segment files: failed syncs, overwritten files, compacted files."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from cotswold.errors import MachineError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot
from cotswold.replication.disk import segments as module
from cotswold.replication.disk.compression import compress, decompress
from cotswold.replication.disk.records import RecordError
from cotswold.replication.disk.segments import Segments

KIB = 1 << 10


def noise(seed: object, count: int = 16 * KIB) -> bytes:
    return random.Random(str(seed)).randbytes(count)


def test_what_is_appended_lies_where_it_is_said_and_begins_on_a_page(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "contents")
    first = segments.append([b"abc", b"", b"de"])
    second = segments.append([b"fgh"])
    assert [at for _, at in (*first, *second)] == [0, 3, 3, 4096]
    assert segments.read(*first[2], 2) == b"de" and segments.read(*second[0], 3) == b"fgh"


def test_many_small_parts_and_short_writes_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def short(file: int, parts: list[memoryview], at: int) -> int:
        return pwritev(file, [parts[0][: max(1, len(parts[0]) // 2)]], at)

    monkeypatch.setattr(os, "pwritev", short)
    segments, parts = Segments(tmp_path / "contents"), [noise(number, number % 7) for number in range(3000)]
    places = segments.append(parts)
    assert [segments.read(*place, len(part)) for place, part in zip(places, parts, strict=True)] == parts


def test_after_a_sync_that_failed_another_file_is_begun_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = Segments(tmp_path / "contents")
    (first,) = segments.append([b"first"])

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            segments.append([b"second"])
    (third,) = segments.append([b"third"])
    assert third[0] == first[0] + 1
    assert segments.read(*first, 5) == b"first"
    with pytest.raises(RecordError, match="is too short"):
        segments.read(first[0], 4096, 6)


def test_a_store_whose_disk_failed_goes_on_when_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = BlockKey("weights", 0)
    with BlockStore(tmp_path) as store:
        store.write(BucketSnapshot("bucket 1", 1, b"", {key: noise(1)}))
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", lambda *_: Path("/nowhere/at/all").stat())
            with pytest.raises(MachineError, match="cannot be written: No such file"):
                store.write(BucketSnapshot("bucket 1", 2, b"", {key: noise(2)}))
        assert store.read("bucket 1").blocks[key] == noise(1)
        store.write(BucketSnapshot("bucket 1", 3, b"", {key: noise(3)}))
    with BlockStore(tmp_path) as store:
        assert store.read("bucket 1").blocks[key] == noise(3)


def test_files_that_nobody_needs_are_written_over(tmp_path: Path) -> None:
    with BlockStore(tmp_path, segment_bytes=64 * KIB) as store:
        for index in range(1, 41):
            blocks = {BlockKey("weights", shard): noise((index, shard)) for shard in range(4)}
            store.write(BucketSnapshot("bucket 1", index, b"", blocks))
            files = [each.stat().st_size for each in (tmp_path / "contents").iterdir()]
            assert len(files) <= 4 and sum(files) <= 4 * 64 * KIB, "two in use, two to be written over"
    with BlockStore(tmp_path) as store:
        assert store.read("bucket 1").blocks == {
            BlockKey("weights", shard): noise((40, shard)) for shard in range(4)
        }


def test_blocks_that_stay_as_they_are_move_out_of_files_that_are_emptied(tmp_path: Path) -> None:
    """In each group one block is permanent, and others are overwritten."""
    kept = {BlockKey("kept", number): noise(number) for number in range(50)}
    with BlockStore(tmp_path, segment_bytes=64 * KIB) as store:
        for number, (key, contents) in enumerate(kept.items()):
            hot = {BlockKey("hot", shard): noise((number, shard)) for shard in range(8)}
            store.write(
                BucketSnapshot("kept", number + 1, b"", {key: contents}),
                BucketSnapshot("hot", number + 1, b"", hot),
            )
        total = sum(each.stat().st_size for each in (tmp_path / "contents").iterdir())
        needed = (len(kept) + 8) * 16 * KIB
        assert total <= 2 * needed + 5 * 256 * KIB
        assert store.read("kept").blocks == kept and store.read("hot").blocks == hot
    with BlockStore(tmp_path) as store:
        assert store.read("kept").blocks == kept and store.read("hot").blocks == hot


def test_zeros_take_little_room_and_noise_is_left_as_it_is() -> None:
    zeros, weights = bytes(1 << 20), np.random.default_rng(0).standard_normal(1 << 18, dtype=np.float32).data
    assert len(compress(memoryview(zeros))) < 8 * KIB
    assert decompress(bytes(compress(memoryview(zeros))), 1 << 20) == zeros
    raw = weights.cast("B")
    assert compress(raw) is raw
    mixed = bytes(1 << 19) + noise(0, 1 << 19)
    assert decompress(bytes(compress(memoryview(mixed))), 1 << 20) == mixed


@pytest.mark.parametrize("stored", [b"", b"abc", b"\xff\xff\xff\x7fabc", b"\x20\0\0\0abc"])
def test_what_was_not_packed_is_no_contents(stored: bytes) -> None:
    with pytest.raises(RecordError):
        decompress(stored, 32)
