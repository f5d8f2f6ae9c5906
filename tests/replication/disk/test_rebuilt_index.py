"""An index with flipped bits is rebuilt, and later writes stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.replication.block_states import BUCKETS, snapshot, state_at

from cotswold.errors import MachineError, StoreError
from cotswold.replication.disk import BlockStore, DamagedError, RebuiltIndex
from cotswold.replication.disk.index import CorruptError, Database

INDEX = 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed store of some groups, each in a separate table."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    with BlockStore(folder) as store:
        write(store, 1, INDEX)
    return folder


def write(store: BlockStore, first: int, last: int) -> None:
    for index in range(first, last + 1):
        store.write(*(snapshot(bucket, index) for bucket in BUCKETS))


def is_open_to_read(folder: Path) -> bool:
    database = Database(folder / "db")
    database.close()
    return isinstance(database.refusal, StoreError)


def spoil(place: Path, share: float = 1.0) -> None:
    """Flip a bit in each 8 bytes of the footer of a table, or of a larger part."""
    content = bytearray(place.read_bytes())
    for at in range(int(len(content) * (1 - share)), len(content), 8):
        content[at] ^= 4
    place.write_bytes(content)


def tables(folder: Path) -> list[Path]:
    return sorted((folder / "db").glob("*.sst"))


def check_all(folder: Path, index: int, others: Mapping[str, int] = {}) -> None:  # nobody writes it
    """Check that every bucket is complete, at an index, after the store was closed."""
    assert not is_open_to_read(folder)
    with BlockStore(folder) as store:
        assert set(store.heads()) == set(BUCKETS)
        for bucket in BUCKETS:
            found = store.read(bucket)
            wanted = others.get(bucket, index)
            assert found.index == wanted and found.blocks == state_at(bucket, wanted)


def test_a_store_whose_index_is_damaged_as_it_is_opened_is_written_to(sound: Path, tmp_path: Path) -> None:
    """With the newest table damaged, contents of older tables are kept, and later writes are new."""
    folder, told = tmp_path / "store", list[RebuiltIndex]()
    shutil.copytree(sound, folder)
    spoil(tables(folder)[-1], 0.2)
    assert is_open_to_read(folder)
    with BlockStore(folder, renewed=told.append) as store:
        with pytest.raises(DamagedError, match="index of heads"):
            store.heads()
        store.mend()
        assert {bucket: head.index for bucket, head in store.heads().items()} == dict.fromkeys(
            BUCKETS, INDEX - 1
        )
        for bucket in BUCKETS:
            assert store.read(bucket).blocks == state_at(bucket, INDEX - 1)
        write(store, INDEX, INDEX)
        (renewed,) = told
        assert renewed.bucket_count == len(BUCKETS) and "may be older" in str(renewed)
        assert not list(folder.glob("db-salvaged")), "it takes no room afterwards"
        write(store, INDEX + 1, INDEX + 2)
        assert told == [renewed], "once is enough"
    check_all(folder, INDEX + 2)
    assert (folder / "db-damaged").is_dir(), "to look into"


def test_a_table_that_is_damaged_while_it_is_open_costs_nothing(sound: Path, tmp_path: Path) -> None:
    """Every head is in memory: the next write that finds the damage rebuilds the index with them."""
    folder, told = tmp_path / "store", list[RebuiltIndex]()
    shutil.copytree(sound, folder)
    with BlockStore(folder, renewed=told.append) as store:
        for each in tables(folder):
            spoil(each)
        with pytest.raises((CorruptError, DamagedError, MachineError)):
            failing(store)
        store.write(snapshot(BUCKETS[0], INDEX + 1))
        (renewed,) = told
        assert renewed.damages == () and renewed.bucket_count == len(BUCKETS)
        assert store.heads().keys() == set(BUCKETS)
    check_all(folder, INDEX, {BUCKETS[0]: INDEX + 1})


def failing(store: BlockStore) -> None:
    """Let a write fail, after which the index is reopened, which reveals its damage."""
    right = store._database.write
    try:
        store._database.write = _fails  # type: ignore[method-assign,assignment]  # to look on
        store.write(snapshot(BUCKETS[0], INDEX + 1))
    finally:
        store._database.write, store._database._has_failed = right, True  # type: ignore[method-assign]  # as it was


def _fails(*_: object) -> None:
    raise MachineError("the disk fails")


def test_a_manifest_that_is_damaged_while_it_is_open_costs_nothing(sound: Path, tmp_path: Path) -> None:
    folder, told = tmp_path / "store", list[RebuiltIndex]()
    shutil.copytree(sound, folder)
    with BlockStore(folder, renewed=told.append) as store:
        (folder / "db" / "CURRENT").write_bytes(b"MANIFEST-000000\n")
        with pytest.raises(MachineError):
            failing(store)
        write(store, INDEX + 1, INDEX + 1)
        assert len(told) == 1 and not told[0].damages
    check_all(folder, INDEX + 1)


def test_what_rocksdb_finds_as_it_merges_tables_is_healed_by_the_next_write(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = tmp_path / "store", list[RebuiltIndex]()
    shutil.copytree(sound, folder)
    with BlockStore(folder, renewed=told.append) as store:
        with monkeypatch.context() as patch:
            patch.setattr("cotswold.replication.disk.index.seal_manifest", _corrupt)
            with pytest.raises(StoreError, match="checksum mismatch"):
                store.write(snapshot(BUCKETS[0], INDEX + 1))
        store.write(snapshot(BUCKETS[0], INDEX + 1))
        assert len(told) == 1
    check_all(folder, INDEX, {BUCKETS[0]: INDEX + 1})


def _corrupt(_: Path) -> None:
    raise CorruptError("Corruption: block checksum mismatch")


@pytest.mark.parametrize("is_begun", [True, False], ids=["in between", "before"])
def test_a_kill_while_the_index_is_begun_anew_loses_none_of_both(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    spoil(tables(folder)[-1], 0.2)
    store = BlockStore(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _killed_at(2 if is_begun else 1))
        with pytest.raises(KeyboardInterrupt):
            store.write(snapshot(BUCKETS[0], INDEX))
    store.close()
    assert (folder / "db").exists() is not is_begun and (folder / "db-new").exists()
    with BlockStore(folder) as again:
        write(again, INDEX, INDEX)
    check_all(folder, INDEX)


def _killed_at(time: int) -> Callable[[Path, Path], Path]:
    right, times = Path.rename, [0]

    def rename(self: Path, target: Path) -> Path:
        times[0] += 1
        if times[0] == time:
            raise KeyboardInterrupt
        return right(self, target)

    return rename


def test_an_older_table_that_is_damaged_takes_nothing_of_the_newest(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    spoil(tables(folder)[0])
    with BlockStore(folder) as store:
        store.mend()
    check_all(folder, INDEX)


def test_a_damaged_store_that_is_only_read_stays_as_it_is(sound: Path, tmp_path: Path) -> None:
    """A checkpoint is such a store."""
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    spoil(tables(folder)[0])
    for _ in range(2):
        with BlockStore(folder) as store, pytest.raises(DamagedError, match="index of heads"):
            store.heads()
    assert not (folder / "db-damaged").exists()


def test_an_index_of_which_nothing_can_be_opened_is_a_damaged_store(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server then moves it aside, and starts with an empty one."""
    folder = tmp_path / "store"
    shutil.copytree(sound, folder)
    monkeypatch.setattr(Database, "_open_database", _unreadable)
    with pytest.raises(StoreError, match="move it away"):
        BlockStore(folder)


def _unreadable(*_: object) -> None:
    raise CorruptError("Corruption: nothing can be read")
