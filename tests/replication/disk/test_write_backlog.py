"""Backlog of writes: merged, due and unsaved changes, without threads or clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cotswold.replication.disk import Backlog, BlockKey, BucketSnapshot, Policy

POLICY = Policy(bytes_max=1000, group_bytes=300, retry_seconds=0.5)
A, B = BlockKey("a", 0), BlockKey("b", 0)


def of(
    index: int, *, bucket: str = "bucket 1", size: int = 10, keys: tuple[BlockKey, ...] = (A,)
) -> BucketSnapshot:
    return BucketSnapshot(bucket, index, b"", {key: bytes([index % 256]) * size for key in keys})


def test_a_newer_snapshot_folds_into_the_one_that_waits() -> None:
    backlog = Backlog(POLICY)
    assert backlog.offer(of(1, keys=(A, B)), 0.0) and backlog.offer(of(2), 0.5)
    (group,) = backlog.take_batch(1.0)
    assert (group.index, group.blocks) == (2, {A: b"\2" * 10, B: b"\1" * 10})


def test_what_waits_is_due_at_once_the_oldest_first_and_no_more_than_a_group() -> None:
    backlog = Backlog(POLICY)
    assert backlog.due_at() is None and not backlog.take_batch(5.0)
    backlog.offer(of(1, bucket="bucket 2", size=300), 5.5)
    backlog.offer(of(1), 5.0)
    assert backlog.take_batch(5.5) == (of(1),)
    assert backlog.due_at() is None and not backlog.take_batch(5.6), "one is being written"
    backlog.written()
    assert backlog.take_batch(5.6) == (of(1, bucket="bucket 2", size=300),)


def test_what_failed_is_tried_again_later_each_time_under_what_is_newer() -> None:
    backlog = Backlog(POLICY)
    backlog.offer(of(1, keys=(A, B)), 0.0)
    assert backlog.take_batch(1.0)
    backlog.offer(of(2), 1.2)
    backlog.failed(2.0)
    assert backlog.due_at() == 2.5
    (group,) = backlog.take_batch(2.5)
    assert (group.index, group.blocks) == (2, {A: b"\2" * 10, B: b"\1" * 10})
    backlog.failed(3.0)
    assert backlog.due_at() == 4.0 and backlog.window_seconds(4.0) == 4.0


def test_one_snapshot_that_is_larger_than_the_bound_is_taken_alone() -> None:
    backlog = Backlog(POLICY)
    assert backlog.offer(of(1, size=5000), 0.0)
    assert not backlog.offer(of(1, bucket="bucket 2"), 0.0)


@given(st.integers(1, 100))
def test_the_wait_after_failures_is_bounded(failures: int) -> None:
    backlog = Backlog(POLICY)
    backlog.offer(of(1), 0.0)
    now = 10.0
    for _ in range(failures):
        assert backlog.take_batch(now)
        backlog.failed(now)
        due = backlog.due_at()
        assert due is not None and 0.5 <= due - now <= 5.0
        now = due


class Backlogs(RuleBasedStateMachine):
    """A model of every bucket: the newest contents, the owner and time, and the contents on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog, self.now, self.index = Backlog(POLICY), 0.0, 0
        self.newest: dict[str, dict[BlockKey, bytes]] = {}
        self.indices: dict[str, int] = {}
        self.disk: dict[str, dict[BlockKey, bytes]] = {}
        self.disk_indices: dict[str, int] = {}
        self.unsaved: dict[str, list[tuple[int, float]]] = {}
        self.group: tuple[BucketSnapshot, ...] = ()

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        before, empty = self.backlog.window_seconds(self.now), self.backlog.is_empty
        self.now += seconds
        after = self.backlog.window_seconds(self.now)
        assert after == 0 if empty else abs(after - before - seconds) < 1e-6

    @rule(
        bucket=st.sampled_from("xyz"),
        keys=st.sets(st.sampled_from([A, B])),
        size=st.integers(0, 400),
        age=st.floats(0, 2),
    )
    def offered(self, bucket: str, keys: set[BlockKey], size: int, age: float) -> None:
        self.index += 1
        before = self.backlog.bytes
        snapshot, since = of(self.index, bucket=bucket, size=size, keys=tuple(keys)), self.now - age
        if self.backlog.offer(snapshot, since):
            self.newest.setdefault(bucket, {}).update(
                {key: bytes(each) for key, each in snapshot.blocks.items()}
            )
            self.indices[bucket] = self.index
            self.unsaved.setdefault(bucket, []).append((self.index, since))
        else:
            assert self.backlog.bytes == before

    @precondition(lambda self: not self.group)
    @rule()
    def taken(self) -> None:
        self.group = self.backlog.take_batch(self.now)
        assert sum(each.bytes for each in self.group) <= POLICY.group_bytes or len(self.group) == 1

    @precondition(lambda self: self.group)
    @rule()
    def written(self) -> None:
        for each in self.group:
            self.disk.setdefault(each.bucket, {}).update(
                {key: bytes(one) for key, one in each.blocks.items()}
            )
            assert each.index > self.disk_indices.get(each.bucket, 0)
            self.disk_indices[each.bucket] = each.index
            self.unsaved[each.bucket] = [one for one in self.unsaved[each.bucket] if one[0] > each.index]
        assert self.backlog.written() == tuple((each.bucket, each.index) for each in self.group)
        self.group = ()

    @precondition(lambda self: self.group)
    @rule()
    def failed(self) -> None:
        self.backlog.failed(self.now)
        self.group = ()

    @invariant()
    def the_window_is_the_age_of_the_oldest_change_that_is_not_on_disk(self) -> None:
        times = [since for each in self.unsaved.values() for _, since in each]
        assert self.backlog.window_seconds(self.now) == (self.now - min(times) if times else 0.0)

    @invariant()
    def the_bound_is_kept(self) -> None:
        assert self.backlog.bytes <= POLICY.bytes_max

    def teardown(self) -> None:
        if self.group:
            self.failed()
        for _ in range(100):
            self.now += 10
            self.group = self.backlog.take_batch(self.now)
            if self.group:
                self.written()
        assert self.backlog.is_empty
        assert self.disk == self.newest and self.disk_indices == self.indices


TestBacklogs = Backlogs.TestCase
