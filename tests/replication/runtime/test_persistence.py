"""A server's reported unsaved window equals its real one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from cotswold.errors import DiskFullError
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.runtime import disk as module
from cotswold.replication.runtime import persistence as saving_module
from cotswold.replication.runtime.disk import Disk
from cotswold.replication.runtime.persistence import MIN_WAIT_FRACTION, WAIT_FRACTION, Persistence
from cotswold.wire import BucketChange

FLUSH_SECONDS = 0.4
BUCKETS = tuple(f"run/{number}" for number in range(5))
KEY = ("weights", 0)
CHANGE = BucketChange((0,), (0,), (), (), (), (), (), 0, 0, None, None, 0)


class Copy:
    unsaved_buffers = (bytes(8),)


class Machine:
    """Buckets that change continually: the number of each is its contents."""

    def __init__(self) -> None:
        self.at = dict.fromkeys(BUCKETS, 0)
        self.made: dict[str, list[float]] = {bucket: [] for bucket in BUCKETS}
        """Times at which each number of a bucket was made, from 1 on."""
        self.given = dict.fromkeys(BUCKETS, 0)
        self.copies = {bucket: Copy() for bucket in BUCKETS}
        self._number = 0
        self._numbers: dict[int, str] = {}

    def change(self) -> None:
        for bucket in BUCKETS:
            self.at[bucket] += 1
            self.made[bucket].append(time.monotonic())

    @property
    def dirty(self) -> list[str]:
        return [bucket for bucket in BUCKETS if self.at[bucket] > self.given[bucket]]

    def save(self, bucket: str) -> tuple[int, SavedBucket]:
        self._number += 1
        self._numbers[self._number] = bucket
        self.given[bucket] = self.at[bucket]
        numbers = {KEY: self.at[bucket].to_bytes(8, "little")}
        return self._number, SavedBucket(bucket, 0, 1, self.at[bucket], CHANGE, ("weights",), numbers)

    def unsaved(self, number: int) -> None:
        self.given[self._numbers[number]] = 0

    @property
    def cluster(self) -> str:
        return "cluster"

    def take_reads(self) -> list[str]:
        return []

    def take_forgotten(self) -> list[str]:
        return []


class Store(BlockStore):
    """A store whose disk may be slow or full."""

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.seconds = 0.0
        self.is_full = False
        self.groups = list[int]()
        """Number of buckets in each write."""
        self.ended = 0
        """Number of finished writes."""

    def write(self, *snapshots: BucketSnapshot) -> None:
        self.groups.append(len(snapshots))
        try:
            time.sleep(self.seconds)
            if self.is_full:
                raise DiskFullError("no room left to write the disk; free some space")
            super().write(*snapshots)
        finally:
            self.ended += 1


class Server:
    """A machine with its disk, for some time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "BlockStore", Store)
        self.machine, self.said = Machine(), list[str]()
        self.disk = Disk(folder, FLUSH_SECONDS, lambda _: None, lambda _: None, self.said.append)
        self.saving = Persistence(cast(Any, self.machine), self.disk, FLUSH_SECONDS, time.monotonic())

    @property
    def store(self) -> Store:
        return cast(Store, self.disk._store)

    def serve(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            self.machine.change()
            self.disk.run_callbacks()
            self.saving.tick(time.monotonic())
            time.sleep(0.005)

    def windows(self) -> tuple[float, float]:
        """Return the age of the oldest unsaved change, as reported and as it is, at a moment without a write
        in progress."""
        while True:
            ended = self.store.ended
            found = self.windows_after_a_write()
            if len(self.store.groups) == ended:
                return found

    def windows_after_a_write(self) -> tuple[float, float]:
        """Return the same: the report at once, the real age after the current write."""
        shown, now = self.saving.unsaved("", time.monotonic()).window_seconds, time.monotonic()
        ages = []
        for bucket in BUCKETS:
            found = self.store.read(bucket).blocks[BlockKey(*KEY)]
            lost = self.machine.made[bucket][int.from_bytes(found, "little") :]
            ages.append(now - lost[0] if lost else 0.0)
        return shown, max(ages)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path / "disk", monkeypatch)


def test_the_window_that_is_shown_is_what_a_kill_at_any_time_would_cost(server: Server) -> None:
    chance = random.Random(3)
    with server.disk:
        server.serve(1.0)
        for _ in range(12):
            server.serve(chance.uniform(0.02, 0.2))
            shown, true = server.windows()
            assert true - 0.02 <= shown <= true + 0.15
        assert server.saving.unsaved("", time.monotonic()).longest_seconds >= shown
    assert not server.said


def test_of_a_server_that_stood_still_that_is_said_and_not_that_its_disk_is_slow(server: Server) -> None:
    with server.disk:
        server.serve(1.0)
        time.sleep(1.5)  # as one that is stopped, and let go on
        server.serve(2.0)
    (said,) = server.said
    assert said.startswith("this server stalled for 1.") and "wrote nothing to its disk" in said
    assert server.saving.unsaved("", time.monotonic()).longest_seconds > 1.4, "it could have been lost"


@pytest.mark.parametrize("heals", [False, True])
def test_a_server_that_stands_still_again_and_again_says_so_seldom_and_how_old_is_what_its_disk_lacks(
    heals: bool,
) -> None:
    disk, now = Taking(), 0.0
    saving = Persistence(cast(Any, Machine()), cast(Any, disk), 1.0, now)
    turns = 20
    for _ in range(turns):
        now, disk.window_seconds = now + 2.5, 2.5
        saving.tick(now)
        for _ in range(5):
            now += 0.1
            disk.window_seconds = 0.0 if heals else disk.window_seconds + 0.1
            saving.tick(now)
    stood = [each for each in disk.said if each.startswith("this server stalled for 2.5 s")]
    late = [each for each in disk.said if each.startswith("unsaved changes are 2.5 s old, and")]
    assert disk.said[0] == stood[0] and disk.said[1] == late[0], "it is spared once"
    assert len(stood) == len(late) == turns / 4, "the clock has ten seconds in four turns"
    assert all("flush_seconds is 1: this server stalled; if all" in each for each in late)
    healed = disk.said.count("unsaved changes are less than 1 s old again; the oldest was 2.5 s old")
    assert healed == (len(late) if heals else 0) and len(disk.said) == 2 * len(late) + healed


def test_small_buckets_are_written_together(server: Server) -> None:
    with server.disk:
        server.serve(2.0)
        groups = server.store.groups
    assert len(groups) <= 2.0 / (MIN_WAIT_FRACTION * FLUSH_SECONDS) + 2
    assert all(each == len(BUCKETS) for each in groups)


class Taking:
    """A disk that accepts everything at once, and records it."""

    pace = "the disk is slow"

    def __init__(self, slowest_seconds: float = 0.0) -> None:
        self.taken, self.said, self.window_seconds = list[str](), list[str](), 0.0
        self.slowest_seconds = slowest_seconds

    def batch(self) -> AbstractContextManager[object]:
        return nullcontext()

    def write(self, number: int, saved: SavedBucket, since: float) -> bool:
        self.taken.append(saved.bucket)
        return True

    def set_cluster(self, cluster: str, now: float) -> None: ...

    def scrub(self, now: float) -> None: ...

    def report(self, sentence: str) -> None:
        self.said.append(sentence)


def taken_in_turns(disk: Taking, seconds: float, pause: float) -> list[int]:
    """Return the numbers of continually changing buckets given to a disk each time."""
    machine, now, turns = Machine(), 0.0, list[int]()
    saving = Persistence(cast(Any, machine), cast(Any, disk), 1.0, now)
    while now < seconds:
        now += pause
        machine.change()
        disk.taken.clear()
        saving.tick(now)
        turns.append(len(disk.taken))
    return turns


@pytest.mark.parametrize(("together", "most"), [(1, 1), (16, 2), (1 << 20, len(BUCKETS))])
def test_so_much_is_given_together_that_a_write_is_worth_it_and_no_more(
    together: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "_BATCH_BYTES", together)  # each bucket has eight
    turns = taken_in_turns(Taking(), 20.0, 0.05)
    assert max(turns) == most
    cycles = 20.0 / WAIT_FRACTION
    assert 0.8 * cycles <= sum(turns) / len(BUCKETS) <= 1.2 * cycles, "however they are given, as often"


@pytest.mark.parametrize(("slowest", "after"), [(0.0, 0.75), (0.05, 0.75), (0.15, 0.55), (2.0, 0.45)])
def test_a_slower_disk_is_given_what_is_different_earlier(slowest: float, after: float) -> None:
    turns = taken_in_turns(Taking(slowest), 60.0, 0.01)
    assert sum(map(bool, turns)) == pytest.approx(60.0 / after, rel=0.05)


def test_a_slow_disk_makes_the_window_longer_and_that_is_shown_and_said(server: Server) -> None:
    with server.disk:
        server.serve(1.0)
        server.store.seconds = 1.2
        server.serve(6.0, until=lambda: bool(server.said))
        server.serve(0.3)
        assert server.saving.unsaved("", time.monotonic()).window_seconds > 2 * FLUSH_SECONDS
        shown, true = server.windows_after_a_write()
        assert true <= shown + 1.3
        (late,) = server.said
        assert "is slow" in late and "flush_seconds is 0.4" in late and late.startswith("unsaved changes are")
        server.store.seconds = 0.0
        server.serve(8.0, until=lambda: len(server.said) > 1)
        assert server.said[1].startswith("unsaved changes are less than 0.4 s old again; the oldest was")
        server.serve(0.5)
        shown, true = server.windows()
        assert shown <= true + 0.15
        assert server.saving.unsaved("", time.monotonic()).longest_seconds > 2 * FLUSH_SECONDS


def test_while_a_disk_is_full_the_window_grows_and_the_reason_is_said(server: Server) -> None:
    with server.disk:
        server.serve(1.0)
        server.store.is_full = True
        server.serve(1.5)
        shown, true = server.windows()
        assert true - 0.02 <= shown <= true + 0.15
        assert shown > 2 * FLUSH_SECONDS
        assert any("no room left" in each for each in server.said)
        assert any("writes fail" in each for each in server.said)
        server.store.is_full = False
        server.serve(8.0, until=lambda: any("again; the oldest" in each for each in server.said))
        assert any("its disk accepts writes again" in each for each in server.said)
        assert any("less than 0.4 s old again" in each for each in server.said)


def test_what_is_different_is_no_dirtier_than_it_is_and_nothing_waits_at_the_end(server: Server) -> None:
    with server.disk:
        server.serve(0.6)
        deadline = time.monotonic() + 5
        while server.saving.unsaved("", time.monotonic()).window_seconds:
            assert time.monotonic() < deadline
            server.disk.run_callbacks()
            server.saving.tick(time.monotonic())
            time.sleep(0.01)
        assert server.saving.unsaved("", time.monotonic()).dirty_bytes == 0
        assert {bucket: server.store.read(bucket).blocks[BlockKey(*KEY)] for bucket in BUCKETS} == {
            bucket: at.to_bytes(8, "little") for bucket, at in server.machine.at.items()
        }


def test_whoever_ends_gives_its_disk_all_that_is_different(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 60.0)
    with server.disk:
        server.serve(0.6)
        server.machine.change()
        assert server.machine.dirty, "most of it waits for its time"
        assert server.saving.finish(time.monotonic()) and not server.machine.dirty
    with BlockStore(server.store.folder) as store:
        assert {bucket: store.read(bucket).blocks[BlockKey(*KEY)] for bucket in BUCKETS} == {
            bucket: at.to_bytes(8, "little") for bucket, at in server.machine.at.items()
        }


def test_whoever_ends_says_what_its_disk_did_not_take(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.3)
    with server.disk:
        server.store.is_full = True
        server.machine.change()
        assert server.saving.finish(time.monotonic())
    assert "it stops with 0.0 MB of unsaved changes" in server.said[-1]


def test_where_there_is_no_room_for_all_the_rest_is_offered_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.disk:
        server.machine.change()
        with monkeypatch.context() as full:
            full.setattr(server.disk._flusher, "offer", lambda *_: False)
            assert not server.saving.finish(time.monotonic())
        assert len(server.machine.dirty) == len(BUCKETS)
        assert server.saving.finish(time.monotonic()) and not server.machine.dirty
