"""Conclusions from heartbeats, without a process or a clock."""

from __future__ import annotations

from cotswold.host.process_info import ResourceUsage
from cotswold.launch.watch.beat import Beat, IdleTracker, State, find_stalled_rank, newer_beat

LIMIT = 1800.0


def beat(exchanges: int, *, waiting: bool = False, idle: float = 0.0, state: State = State.RUNNING) -> Beat:
    return Beat(1, state, exchanges, waiting, idle)


def test_a_beat_comes_back_from_its_text() -> None:
    told = Beat(7, State.DONE, 3, waiting=True, idle_seconds=1.5)
    assert Beat.loads(told.dumps()) == told


def test_only_a_later_beat_is_news() -> None:
    old, new = Beat(7), Beat(8)
    assert newer_beat(None, None) is None
    assert newer_beat(None, old.dumps()) == old
    assert newer_beat(old, new.dumps()) == new


def test_a_repeated_old_beat_is_no_sign_of_activity_and_a_deleted_one_no_exit() -> None:
    old, new = Beat(7), Beat(8)
    assert newer_beat(new, old.dumps()) == new
    assert newer_beat(new, None) == new


def test_a_rank_that_does_nothing_while_others_wait_for_it_has_stalled() -> None:
    beats = {0: beat(5, waiting=True, idle=2000), 1: beat(4, idle=1900), 2: beat(5, waiting=True, idle=1900)}
    assert find_stalled_rank(beats, LIMIT) == 1


def test_who_works_has_not_stalled_however_long_others_wait() -> None:
    assert find_stalled_rank({0: beat(5, waiting=True, idle=90000), 1: beat(4, idle=3)}, LIMIT) is None


def test_nobody_has_stalled_before_the_limit() -> None:
    assert find_stalled_rank({0: beat(5, waiting=True, idle=LIMIT), 1: beat(4, idle=LIMIT)}, LIMIT) is None


def test_a_rank_that_nobody_waits_for_may_rest() -> None:
    assert find_stalled_rank({0: beat(4, idle=9000), 1: beat(4, idle=9000)}, LIMIT) is None
    assert (
        find_stalled_rank({0: beat(4, waiting=True, idle=9000), 1: beat(4, waiting=True, idle=9000)}, LIMIT)
        is None
    )


def test_who_waits_for_the_stalled_one_elsewhere_is_not_blamed() -> None:
    # rank 2 waits for rank 1 in an exchange of maps, which is none of the membership's
    beats = {0: beat(5, waiting=True, idle=9000), 1: beat(4, idle=2001), 2: beat(4, idle=2000)}
    assert find_stalled_rank(beats, LIMIT) == 1


def test_those_who_have_finished_wait_for_all_others() -> None:
    beats = {0: beat(5, state=State.DONE), 1: beat(5, idle=2000), 2: beat(6, state=State.LEFT)}
    assert find_stalled_rank(beats, LIMIT) == 1


def test_what_looks_now_and_then_does_nothing() -> None:
    rest = IdleTracker(ResourceUsage(10.0, 5), at_seconds=100.0)
    for second in range(1, 61):
        rest = rest.advance(ResourceUsage(10.0 + 0.001 * second, 5), 100.0 + second)
    assert rest.idle_seconds == 60


def test_a_little_work_ends_a_rest() -> None:
    rest = IdleTracker(ResourceUsage(10.0, 5), at_seconds=0.0, idle_seconds=1000)
    assert rest.advance(ResourceUsage(10.1, 5), 1.0).idle_seconds == 0  # a core on a busy machine
    assert rest.advance(ResourceUsage(10.0, 6), 1.0).idle_seconds == 0  # one block on a slow disk
    assert rest.advance(ResourceUsage(10.0, 5), 1.0).idle_seconds == 1001


def test_time_in_which_the_process_was_stopped_is_no_rest() -> None:
    rest = IdleTracker(ResourceUsage(10.0, 5), at_seconds=0.0)
    assert rest.advance(ResourceUsage(10.0, 5), 86400.0).idle_seconds <= 3
