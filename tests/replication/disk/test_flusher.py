"""The thread around the backlog, with failing, hanging and real stores."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from cotswold.errors import DiskFullError
from cotswold.replication.disk import (
    BlockKey,
    BlockStore,
    BucketSnapshot,
    Flusher,
    Policy,
    WriteCompleted,
    WriteFailed,
)

KEY = BlockKey("weights", 0)
AT_ONCE = Policy(retry_seconds=0.01)
WITHIN = 10.0

Said = queue.SimpleQueue[WriteCompleted | WriteFailed]


class Fake:
    """A store that keeps its input, fails a number of times, and blocks writes until released."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.written = failures, dict[str, int]()
        self.may_write, self.began = threading.Event(), threading.Event()
        self.may_write.set()

    def write(self, *snapshots: BucketSnapshot) -> None:
        self.began.set()
        assert self.may_write.wait(WITHIN)
        if self.failures:
            self.failures -= 1
            raise DiskFullError("no room left; free some space")
        self.written.update({each.bucket: each.index for each in snapshots})

    def drop(self, bucket: str) -> None:
        self.written.pop(bucket, None)


def of(index: int, bucket: str = "bucket 1", size: int = 10) -> BucketSnapshot:
    return BucketSnapshot(bucket, index, b"", {KEY: bytes(size)})


def written(said: Said, *indices: tuple[str, int]) -> None:
    told = said.get(timeout=WITHIN)
    assert isinstance(told, WriteCompleted) and told.indices == indices and told.window_seconds == 0.0


def test_it_is_told_how_long_a_write_takes_and_took() -> None:
    now, said, store = [0.0], Said(), Fake()
    store.may_write.clear()
    flusher = Flusher(store, said.put, AT_ONCE, clock=lambda: now[0])
    assert flusher.writing_seconds == 0.0
    flusher.offer(of(1, size=600))
    assert store.began.wait(WITHIN)
    now[0] = 3.0
    assert (flusher.writing_seconds, flusher.window_seconds) == (3.0, 3.0)
    store.may_write.set()
    told = said.get(timeout=WITHIN)
    assert isinstance(told, WriteCompleted) and (told.bytes, told.seconds) == (600, 3.0)
    assert flusher.writing_seconds == 0.0
    assert flusher.close(WITHIN)


def test_what_is_offered_together_is_one_write() -> None:
    said, store = Said(), Fake()
    flusher = Flusher(store, said.put, AT_ONCE)
    with flusher.batch():
        flusher.offer(of(1))
        assert not store.began.wait(0.05), "nothing is taken meanwhile"
        flusher.offer(of(2, "bucket 2"))
    written(said, ("bucket 1", 1), ("bucket 2", 2))
    assert flusher.close(WITHIN)


def test_what_is_offered_is_on_disk_once_that_is_told(tmp_path: Path) -> None:
    said = Said()
    with BlockStore(tmp_path) as store:
        flusher = Flusher(store, said.put, AT_ONCE)
        assert flusher.offer(of(7))
        written(said, ("bucket 1", 7))
        assert store.heads()["bucket 1"].index == 7
        flusher.drop("bucket 1")
        written(said)
        assert store.heads() == {}
        assert flusher.close(WITHIN)


def test_writes_that_fail_are_told_and_tried_again_with_the_newest() -> None:
    said, store = Said(), Fake(failures=2)
    store.may_write.clear()
    flusher = Flusher(store, said.put, AT_ONCE)
    flusher.offer(of(1))
    assert store.began.wait(WITHIN)
    flusher.offer(of(2))
    store.may_write.set()
    assert isinstance(said.get(timeout=WITHIN), WriteFailed) and isinstance(
        said.get(timeout=WITHIN), WriteFailed
    )
    written(said, ("bucket 1", 2))
    assert flusher.close(WITHIN)


def test_an_offer_does_not_wait_for_a_disk_that_hangs_and_is_refused_where_there_is_no_room() -> None:
    store = Fake()
    store.may_write.clear()
    flusher = Flusher(store, lambda told: None, Policy(bytes_max=1000))
    assert flusher.offer(of(1, size=600))
    assert store.began.wait(WITHIN)
    assert not flusher.offer(of(2, size=600))
    assert flusher.bytes == 600 and flusher.window_seconds > 0
    assert not flusher.close(0.01)
    store.may_write.set()


def test_a_close_writes_all_that_waits() -> None:
    store = Fake(failures=1)
    store.may_write.clear()
    flusher = Flusher(store, lambda told: None, Policy(group_bytes=20, retry_seconds=0.01))
    for number in range(5):
        assert flusher.offer(of(number, f"bucket {number}"))
    store.may_write.set()
    assert flusher.close(WITHIN)
    assert store.written == {f"bucket {number}": number for number in range(5)}
    with pytest.raises(RuntimeError, match="closed"):
        flusher.offer(of(9))


def test_a_bucket_that_is_dropped_while_it_is_written_is_gone_and_may_come_back() -> None:
    said, store = Said(), Fake()
    store.may_write.clear()
    flusher = Flusher(store, said.put, AT_ONCE)
    flusher.offer(of(1))
    assert store.began.wait(WITHIN)
    flusher.drop("bucket 1")
    store.may_write.set()
    written(said)
    written(said)
    assert store.written == {}
    flusher.offer(of(2))
    assert flusher.close(WITHIN) and store.written == {"bucket 1": 2}


def test_a_mistake_in_a_store_is_raised_at_whoever_offers() -> None:
    class Broken(Fake):
        def write(self, *snapshots: BucketSnapshot) -> None:
            raise ZeroDivisionError

    flusher = Flusher(Broken(), lambda told: None, AT_ONCE)
    flusher.offer(of(1))
    assert not flusher.close(WITHIN)
    with pytest.raises(RuntimeError, match="has stopped"):
        flusher.offer(of(2))
