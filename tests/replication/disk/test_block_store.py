"""Written data is read back by authorized readers."""

from __future__ import annotations

import json
import pickletools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict
from tests.support.replication.block_states import snapshot

from cotswold.errors import BusyError, FormatError, MachineError, StoreError, UserError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = st.builds(BlockKey, NAMES | st.sampled_from("ab"), st.integers(0, 2) | st.just(2**32 - 1))
CONTENTS = st.binary(max_size=50) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 5000)
SNAPSHOTS = st.builds(
    BucketSnapshot,
    NAMES | st.sampled_from(["a", "ab", "b"]),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=20),
    st.dictionaries(KEYS, CONTENTS, max_size=3),
)
ACTIONS = st.lists(st.lists(SNAPSHOTS, max_size=3) | NAMES | st.none(), max_size=6)
"""Written groups, dropped buckets, and reopened stores."""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_a_store_is_a_dictionary_of_buckets_that_outlives_its_process(
    tmp_path_factory: pytest.TempPathFactory, actions: list[list[BucketSnapshot] | str | None]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    # files so small that they are emptied all the time
    store, model = BlockStore(folder, segment_bytes=1), dict[str, tuple[int, bytes, dict[BlockKey, object]]]()
    for action in (*actions, None):
        if action is None:
            store.close()
            store = BlockStore(folder, segment_bytes=1)
        elif isinstance(action, str):
            store.drop(action)
            model.pop(action, None)
        else:
            store.write(*action)
            for each in action:
                blocks = model.get(each.bucket, (0, b"", {}))[2]
                model[each.bucket] = each.index, each.head, {**blocks, **each.blocks}
    with store:
        assert {name: (head.index, head.head) for name, head in store.heads().items()} == {
            name: (index, head) for name, (index, head, _) in model.items()
        }
        for name, expected in model.items():
            found = store.read(name)
            assert (found.index, found.head, found.blocks) == expected


def test_an_empty_block_that_was_alone_in_its_file_is_read_again(tmp_path: Path) -> None:
    key = BlockKey("weights", 0)
    with BlockStore(tmp_path, segment_bytes=1) as store:
        store.write(BucketSnapshot("bucket 1", 1, b"head", {key: b""}))
    with BlockStore(tmp_path, segment_bytes=1) as store:
        store.write()
    with BlockStore(tmp_path, segment_bytes=1) as store:
        assert store.read("bucket 1").blocks == {key: b""}


def test_what_nobody_has_written_is_not_there(tmp_path: Path) -> None:
    with BlockStore(tmp_path) as store, pytest.raises(KeyError, match="bucket 17"):
        store.read("bucket 17")


def test_a_block_may_be_any_buffer(tmp_path: Path) -> None:
    numbers = np.linspace(0, 1, 5000, dtype=np.float32)
    key = BlockKey("weights", 0)
    with BlockStore(tmp_path) as store:
        store.write(BucketSnapshot("bucket 1", 1, b"", {key: numbers.data}))
        assert np.array_equal(np.frombuffer(store.read("bucket 1").blocks[key], np.float32), numbers)


def test_a_head_says_with_which_index_each_block_was_written(tmp_path: Path) -> None:
    a, b = BlockKey("a", 0), BlockKey("b", 0)
    with BlockStore(tmp_path) as store:
        store.write(BucketSnapshot("bucket 1", 1, b"first", {a: b"1", b: b"1"}))
        store.write(BucketSnapshot("bucket 1", 2, b"second", {b: b"2"}))
        (head,) = store.heads().values()
    assert (head.index, head.head) == (2, b"second")
    assert {key: block.index for key, block in head.blocks.items()} == {a: 1, b: 2}


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 600])
def test_a_name_that_cannot_be_a_key_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with BlockStore(tmp_path) as store:
        with pytest.raises(ValueError, match="a name has"):
            store.write(BucketSnapshot("good", 1, b"", {}), BucketSnapshot(name, 1, b"", {}))
        assert store.heads() == {}


def test_a_second_opener_is_told_who_has_the_store(tmp_path: Path) -> None:
    with BlockStore(tmp_path), pytest.raises(BusyError, match="in use by process"):
        BlockStore(tmp_path)
    BlockStore(tmp_path).close()


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    store = BlockStore(tmp_path)
    store.close()
    with pytest.raises(MachineError, match="is closed"):
        store.read("bucket 1")
    with pytest.raises(MachineError, match="is closed"):
        store.write(BucketSnapshot("bucket 1", 1, b"", {}))


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    BlockStore(tmp_path).close()
    (tmp_path / "format.json").write_text(json.dumps({"blocks": 2}))
    with pytest.raises(FormatError, match=r"a newer version of Cotswold \(format 2; this version reads 1\)"):
        BlockStore(tmp_path)


def test_a_format_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    BlockStore(tmp_path).close()
    (tmp_path / "format.json").write_bytes(b"\xff")
    with pytest.raises(StoreError, match=r"format\.json is damaged"):
        BlockStore(tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not a block store"):
        BlockStore(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"file/store cannot be written"):
        BlockStore(tmp_path / "file" / "store")


def test_values_are_raw_bytes_and_no_pickles(tmp_path: Path) -> None:
    with BlockStore(tmp_path) as store:
        store.write(*(snapshot(f"bucket {number}", 1) for number in range(3)))
    assert json.loads((tmp_path / "db" / "rocksdict-config.json").read_text())["raw_mode"] is True
    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    values = dict(database.items())
    database.close()
    assert len(values) == 3
    for key, value in values.items():
        assert isinstance(key, bytes) and isinstance(value, bytes)
        with pytest.raises(ValueError):
            list(pickletools.genops(value))
