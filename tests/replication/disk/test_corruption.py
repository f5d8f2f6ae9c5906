"""Bit flips in any file."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.replication.block_states import BLOCKS, BUCKETS, changes_at, snapshot, state_at

from cotswold.errors import StoreError, UserError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot, Damage, DamagedError, Head
from cotswold.replication.disk.index import Database
from cotswold.replication.disk.manifest import check_manifest
from cotswold.replication.disk.records import RecordError, StoredBlock, head_key, head_record

INDEX = 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed store of some groups, with several files of each kind."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    with BlockStore(folder) as store:
        for index in range(1, INDEX + 1):
            store.write(*(snapshot(bucket, index) for bucket in BUCKETS))
    return folder


def flip(place: Path, at: int) -> None:
    """Flip one bit."""
    content = bytearray(place.read_bytes())
    content[at] ^= 1 << at % 8
    place.write_bytes(content)


def damage_of(folder: Path) -> set[tuple[str | None, BlockKey | None]]:
    """Return the damage reported by an opened store; asserts that everything else is right."""
    named = set[tuple[str | None, BlockKey | None]]()
    with BlockStore(folder) as store:
        try:
            heads = store.heads()
        except DamagedError as error:
            named |= {(each.bucket, each.block) for each in error.damaged}
            heads = error.heads
        if (None, None) not in named:
            assert set(heads) | {bucket for bucket, block in named if block is None} == set(BUCKETS)
        for bucket in BUCKETS:
            try:
                found = store.read(bucket)
            except KeyError:
                assert (None, None) in named
                continue
            except DamagedError as error:
                named |= {(each.bucket, each.block) for each in error.damaged}
                if error.bucket is None:
                    continue
                found = error.bucket
            if (None, None) in named and found.index < INDEX:
                continue
            assert found.index == INDEX and found.head == f"head {bucket} {INDEX}".encode()
            lost = {block for of, block in named if of == bucket}
            assert found.blocks == {
                key: value for key, value in state_at(bucket, INDEX).items() if key not in lost
            }
    return named


def kinds(folder: Path) -> dict[str, list[Path]]:
    found = dict[str, list[Path]]()
    for place in sorted(folder.rglob("*")):
        if place.is_file() and place.stat().st_size:
            kind = "contents" if place.parent.name == "contents" else place.suffix or place.name.split("-")[0]
            found.setdefault(kind, []).append(place)
    return found


KINDS = ("contents", ".sst", "MANIFEST", "CURRENT", "IDENTITY", "OPTIONS", "LOG", ".json", "lock", "seal")


def test_every_kind_of_file_is_tried(sound: Path) -> None:
    assert set(kinds(sound)) == set(KINDS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_file_is_named_or_does_no_harm(sound: Path, tmp_path: Path, kind: str) -> None:
    chance, folder = random.Random(kind), tmp_path / "store"
    flips = 0
    while flips < 40:
        for place in kinds(sound)[kind]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(sound, folder)
            at = chance.randrange(place.stat().st_size)
            flip(folder / place.relative_to(sound), at)
            flips += 1
            try:
                damage_of(folder)
            except (StoreError, UserError):  # the whole store is lost, and says so
                assert kind in ("MANIFEST", "CURRENT", ".json")  # of the kind, not the error
            except AssertionError as error:
                raise AssertionError(f"{place.name}, byte {at} of {place.stat().st_size}") from error


def test_a_flipped_bit_in_a_block_is_told_by_bucket_vector_and_shard(sound: Path, tmp_path: Path) -> None:
    folder, bucket, key = tmp_path / "store", "bucket 1", BlockKey("squares", 2)
    shutil.copytree(sound, folder)
    value = state_at(bucket, INDEX)[key]
    (place,) = [each for each in folder.glob("contents/*") if value in each.read_bytes()]
    flip(place, place.read_bytes().index(value) + len(value) // 2)
    assert damage_of(folder) == {(bucket, key)}


def stored(folder: Path, changes: dict[bytes, bytes]) -> None:
    """Put values into a store directly, with valid checksums of RocksDB."""
    database = Database(folder / "db")
    database.write(changes.items())
    database.close()


def head_in(folder: Path, bucket: str) -> Head:
    with BlockStore(folder) as store:
        return store.heads()[bucket]


def refer(folder: Path, bucket: str, key: BlockKey, block: StoredBlock) -> None:
    """Make the index refer to a wrong location of a block."""
    head = head_in(folder, bucket)
    wrong = replace(head, blocks={**head.blocks, key: block})
    stored(folder, {head_key(bucket): head_record(head_key(bucket), wrong)})


@pytest.mark.parametrize(
    "other", [("bucket 2", BlockKey("weights", 0)), ("bucket 1", BlockKey("weights", 1))]
)
def test_a_block_of_another_key_in_its_place_is_named(
    sound: Path, tmp_path: Path, other: tuple[str, BlockKey]
) -> None:
    folder, bucket, key = tmp_path / "store", "bucket 1", BlockKey("weights", 0)
    shutil.copytree(sound, folder)
    refer(folder, bucket, key, head_in(folder, other[0]).blocks[other[1]])
    assert damage_of(folder) == {(bucket, key)}


def test_an_older_block_in_its_place_is_named(sound: Path, tmp_path: Path) -> None:
    folder, bucket, key = tmp_path / "store", "bucket 1", BlockKey("weights", 0)
    shutil.copytree(sound, folder)
    (place,) = folder.glob("contents/*")
    older = changes_at(bucket, INDEX - 1)[key]
    block = head_in(folder, bucket).blocks[key]
    refer(folder, bucket, key, replace(block, offset=place.read_bytes().index(older)))
    assert damage_of(folder) == {(bucket, key)}


@pytest.mark.parametrize("length", [0, 5, 100])
def test_a_torn_block_is_named(sound: Path, tmp_path: Path, length: int) -> None:
    folder, bucket, key = tmp_path / "store", "bucket 1", BlockKey("weights", 0)
    shutil.copytree(sound, folder)
    (place,) = folder.glob("contents/*")
    block = head_in(folder, bucket).blocks[key]
    end = block.offset + length
    content = place.read_bytes()
    place.write_bytes(content[:end] + bytes(block.stored - length) + content[block.offset + block.stored :])
    assert damage_of(folder) == {(bucket, key)}


def test_contents_that_are_gone_are_named_block_by_block(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    (place,) = folder.glob("contents/*")
    place.unlink()
    assert damage_of(folder) == {(bucket, key) for bucket in BUCKETS for key in BLOCKS}


def test_a_damaged_head_is_named_and_other_buckets_are_there(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    stored(folder, {head_key("bucket 1"): b"no head of ours"})
    assert damage_of(folder) == {("bucket 1", None)}


def test_damage_is_healed_by_writing_again(sound: Path, tmp_path: Path) -> None:
    folder, bucket, key = tmp_path / "store", "bucket 1", BlockKey("weights", 0)
    shutil.copytree(sound, folder)
    (place,) = folder.glob("contents/*")
    flip(place, head_in(folder, bucket).blocks[key].offset)
    stored(folder, {head_key("bucket 2"): b""})
    assert damage_of(folder) == {(bucket, key), ("bucket 2", None)}
    with BlockStore(folder) as store:
        head = f"head {bucket} {INDEX}".encode()
        store.write(BucketSnapshot(bucket, INDEX, head, {key: state_at(bucket, INDEX)[key]}))
        whole = state_at("bucket 2", INDEX)
        store.write(BucketSnapshot("bucket 2", INDEX, f"head bucket 2 {INDEX}".encode(), whole))
    assert damage_of(folder) == set()


def test_many_damaged_blocks_make_one_sentence() -> None:
    damaged = tuple(Damage("bucket 1", BlockKey("w", shard), "its checksum is wrong") for shard in range(5))
    assert str(DamagedError("/store", damaged)) == (
        "/store is damaged: bucket 1, w, shard 0 (its checksum is wrong); "
        "bucket 1, w, shard 1 (its checksum is wrong); bucket 1, w, shard 2 (its checksum is wrong) and 2 "
        "more; write these again from a copy on another server, and check the disk"
    )


def test_any_flipped_bit_in_a_manifest_is_found_before_rocksdb_loops_over_it(
    sound: Path, tmp_path: Path
) -> None:
    shutil.copytree(sound, tmp_path / "store")
    (place,) = (tmp_path / "store" / "db").glob("MANIFEST-*")
    check_manifest(place.parent)
    for at in range(place.stat().st_size):
        flip(place, at)
        with pytest.raises(RecordError):
            check_manifest(place.parent)
        flip(place, at)


def test_a_manifest_that_has_lost_its_end_does_not_bring_back_an_older_state(
    sound: Path, tmp_path: Path
) -> None:
    shutil.copytree(sound, tmp_path / "store")
    (place,) = (tmp_path / "store" / "db").glob("MANIFEST-*")
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(StoreError, match="is truncated"):
        BlockStore(tmp_path / "store")


def test_a_store_without_its_format_is_damaged_and_no_folder_of_something_else(
    sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    (folder / "format.json").unlink()
    with pytest.raises(StoreError, match=r"no format\.json"):
        BlockStore(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter").write_text("dear")
    with pytest.raises(UserError, match="not a block store"):
        BlockStore(other)


def test_an_index_that_is_damaged_while_it_is_open_is_begun_anew_by_the_next_write(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with BlockStore(folder) as store:
        store.write(*(snapshot(bucket, 1) for bucket in BUCKETS))
        (folder / "db" / "CURRENT").write_bytes(b"nothing\n")
        with pytest.raises(StoreError, match="names no manifest"):
            store.write(snapshot(BUCKETS[0], 2))
        store.write(*(snapshot(bucket, 3) for bucket in BUCKETS))
        assert all(store.read(bucket).index == 3 for bucket in BUCKETS)
    with BlockStore(folder) as store:
        assert {head.index for head in store.heads().values()} == {3}
