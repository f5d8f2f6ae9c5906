"""Times at which buckets are given to the disk."""

from __future__ import annotations

import random

import pytest

from cotswold.replication.replica.flush_schedule import FlushSchedule

TICK = 0.02


@pytest.mark.parametrize("buckets", [1, 3, 64])
def test_buckets_that_change_all_the_time_are_given_evenly_and_in_time(buckets: int) -> None:
    names = [f"bucket {number}" for number in range(buckets)]
    spreading, now, given = FlushSchedule(0.6, 0.0), 0.0, list[int]()
    while now < 6.0:
        now += TICK
        spreading.note(names, now)
        due = spreading.due(now)
        for each in due:
            assert now - spreading.dirty_since(each) <= 0.6 + TICK
            spreading.flushed(each)
        given.append(len(due))
    assert max(given) <= buckets * TICK / 0.6 + 1, "no moment has much to do"
    assert 0.9 * buckets * 10 <= sum(given) <= 1.1 * buckets * 10 + 1, "and each is given once in that time"


def test_where_more_are_given_than_are_due_others_are_so_much_later() -> None:
    names = [f"bucket {number}" for number in range(6)]
    spreading, now, turns = FlushSchedule(0.6, 0.0), 0.0, 0
    while now < 6.0:
        now += TICK
        spreading.note(names, now)
        if spreading.due(now):
            turns += 1
            for each in spreading.all:
                assert now - spreading.dirty_since(each) <= 0.6 + TICK
                spreading.flushed(each)
    assert turns in (10, 11)


def test_what_was_given_early_is_made_up_for_though_little_is_different_for_long() -> None:
    spreading, now = FlushSchedule(0.6, 0.0), 0.0
    while now < 60.0:
        now += TICK
        spreading.note(["bucket 0"], now)
        for each in spreading.due(now):
            spreading.flushed(each)
    names = [f"bucket {number}" for number in range(100)]
    given = list[int]()
    while now < 66.0:
        now += TICK
        spreading.note(names, now)
        for each in spreading.due(now):
            spreading.flushed(each)
        given.append(100 - len(spreading.all))
    assert max(given) <= 100 * TICK / 0.6 + 2, "no moment has much to do"


def test_buckets_that_change_now_and_then_are_given_in_time() -> None:
    chance, spreading, now, changed = random.Random(1), FlushSchedule(1.0, 0.0), 0.0, dict[str, float]()
    for _ in range(2000):
        now += TICK
        for number in range(40):
            if chance.random() < 0.005:
                changed.setdefault(f"bucket {number}", now - TICK / 2)
        spreading.note([*changed], now)
        for each in spreading.due(now):
            assert (
                spreading.dirty_since(each) <= changed.pop(each)
                and now - spreading.dirty_since(each) <= 1.0 + 2 * TICK
            )
            spreading.flushed(each)
        assert spreading.window_seconds(now) <= 1.0


def test_what_the_disk_does_not_take_keeps_its_age() -> None:
    spreading = FlushSchedule(1.0, 0.0)
    spreading.note(["a"], 1.0)
    for now in (2.0, 3.0, 4.0):
        assert spreading.due(now) == ["a"]
        assert spreading.window_seconds(now) == now, "it may have changed as soon as it was noted last"
    spreading.flushed("a")
    assert spreading.window_seconds(5.0) == 0.0
    spreading.note([], 5.0)
    spreading.note(["a"], 6.0)
    assert spreading.dirty_since("a") == 5.0


def test_a_bucket_that_is_different_no_more_is_not_given() -> None:
    spreading = FlushSchedule(1.0, 0.0)
    spreading.note(["a", "b"], 1.0)
    spreading.note(["b"], 1.1)
    assert spreading.due(5.0) == ["b"]
