"""Conclusions from heartbeats, step by step: no thread, no store, no clock."""

from __future__ import annotations

import pytest

from cotswold.host.process_info import ResourceUsage
from cotswold.launch.watch.abort_reason import AbortReason
from cotswold.launch.watch.beat import Beat, State
from cotswold.launch.watch.failure_detector import FailureDetector
from cotswold.launch.watch.role import Role

TIMEOUT = 20.0
SILENT = "rank 2 has been silent for 20 s"
BUSY = ResourceUsage(0.0, 0)


def begin(rank: int = 0, size: int = 2, keeper: int | None = 0, stall: float = 1800.0) -> FailureDetector:
    return FailureDetector.begin(Role(rank, size, keeper, TIMEOUT, stall), BUSY, now=0.0)


def beat(count: int, state: State = State.RUNNING, *, exchanges: int = 0, waiting: bool = False) -> str:
    return Beat(count, state, exchanges, waiting).dumps()


def second(
    heartbeat: FailureDetector, now: float, others: list[str | None], end: AbortReason | None = None
) -> FailureDetector:
    """Run one round: the detector beats, receives all beats, and reads the clock."""
    spoken = heartbeat.prepare_beat(BUSY, now)
    said = [*others]
    said.insert(heartbeat.role.rank, spoken.message.beat.dumps())
    heard = spoken.receive(said, None if end is None else end.dumps(), now)
    return heard.tick(now, parent_gone=False)


def test_every_beat_has_the_next_number_and_tells_how_far_the_rank_is() -> None:
    heartbeat = begin().prepare_beat(BUSY, 1.0)
    assert heartbeat.message.beat.count == 1 and heartbeat.message.abort_reason is None
    heartbeat = heartbeat.enter_exchange().finish_work().prepare_beat(BUSY, 2.0)
    assert heartbeat.message.beat == Beat(2, State.DONE, exchanges=1, waiting=True, idle_seconds=2.0)
    assert not heartbeat.leave_exchange().prepare_beat(BUSY, 3.0).message.beat.waiting


def test_ranks_that_have_not_come_are_absent_and_not_dead() -> None:
    heartbeat = begin(size=3)
    for now in range(100):
        heartbeat = second(heartbeat, now, [None, beat(now)])
    assert heartbeat.absent_ranks == [1] and heartbeat.abort_reason is None


def test_a_rank_that_is_silent_for_longer_than_the_timeout_is_told_of_before_this_one_ends() -> None:
    heartbeat = begin(1, size=3)
    for now in range(30):
        heartbeat = second(heartbeat, now, [beat(now), beat(5)])
        assert heartbeat.abort_reason is None
        if heartbeat.pause_seconds == 0:
            break
    assert 20 <= now <= 22
    heartbeat = heartbeat.prepare_beat(BUSY, now)
    assert heartbeat.message.abort_reason == AbortReason(2, "rank 2 has been silent for 20 s", silent=True)
    assert heartbeat.message.beat.state is State.LEFT and heartbeat.abort_reason is None
    heartbeat = second(heartbeat, now, [beat(now + 1), beat(5)])
    assert heartbeat.abort_reason == heartbeat.message.abort_reason and heartbeat.is_silent


def test_who_waits_at_the_end_does_not_take_one_that_failed_for_one_that_has_finished() -> None:
    failed = AbortReason(1, "rank 1 on b failed: ValueError", silent=False)
    heartbeat = second(begin().finish_work(), 1.0, [beat(1, State.LEFT)], failed)
    assert not heartbeat.all_done
    heartbeat = second(heartbeat, 1.1, [beat(1, State.LEFT)], failed)
    assert heartbeat.abort_reason == failed and not heartbeat.all_done


def test_the_host_of_the_store_exits_only_once_the_others_know() -> None:
    found = AbortReason(2, "rank 2 on b has died", silent=True)
    heartbeat = second(begin(0, size=3), 1.0, [beat(1), beat(1)], found)
    heartbeat = second(heartbeat, 1.1, [beat(1), beat(1)], found)
    assert heartbeat.message.abort_reason == found and heartbeat.abort_reason is None
    assert second(heartbeat, 1.2, [beat(2, State.LEFT), beat(1)], found).abort_reason == found


def test_the_host_of_the_store_waits_for_a_few_beats_and_no_longer() -> None:
    found = AbortReason(2, "rank 2 on b has died", silent=True)
    heartbeat = second(begin(0, size=3), 1.0, [beat(1), beat(1)], found)
    for now in (2.0, 3.0, 4.0, 5.0):
        heartbeat = second(heartbeat, now, [beat(1), beat(1)], found)
        assert heartbeat.abort_reason is None
    assert heartbeat.tick(5.1, parent_gone=False).abort_reason == found


def test_a_verdict_is_told_in_time_also_while_the_store_hangs() -> None:
    found = AbortReason(2, "rank 2 on b has died", silent=True)
    heartbeat = second(begin(1, size=3), 1.0, [beat(1), beat(1)], found).prepare_beat(BUSY, 1.1)
    for tenth in range(11, 50):
        heartbeat = heartbeat.tick(tenth / 10, parent_gone=False)
        assert heartbeat.abort_reason is None
    assert heartbeat.tick(5.1, parent_gone=False).abort_reason == found


def test_all_tell_the_story_of_whoever_wrote_the_verdict_first() -> None:
    first = AbortReason(3, "rank 3 failed", silent=False)
    heartbeat = begin(1, size=4)
    now = 0
    while heartbeat.pause_seconds:
        now += 1
        heartbeat = second(heartbeat, now, [beat(now), beat(5), beat(now)])
    assert second(heartbeat, now, [beat(now), beat(5), beat(now)], first).abort_reason == first


def test_after_a_broken_connection_a_few_beats_are_enough() -> None:
    heartbeat = begin(1, size=3).suspect()
    for now in range(5):
        heartbeat = second(heartbeat, now, [beat(now), beat(1)])
    heartbeat = second(heartbeat, 5.0, [beat(5), beat(1)]).prepare_beat(BUSY, 5.0)
    gone = "rank 2 is lost: a connection broke, and it has been silent for 4 s"
    assert heartbeat.message.abort_reason == AbortReason(2, gone, silent=True)


@pytest.mark.parametrize(("keeper", "name"), [(0, "rank 0"), (None, "the launcher's store")])
def test_a_store_whose_connection_breaks_counts_as_lost_with_its_host(keeper: int | None, name: str) -> None:
    heartbeat = second(begin(1, keeper=keeper), 1.0, [beat(1)]).disconnect(1.5)
    assert heartbeat.abort_reason == AbortReason(
        keeper, f"{name} is lost: the connection to it broke", silent=True
    )
    assert heartbeat.is_silent


def test_a_store_that_does_not_answer_for_the_timeout_is_lost() -> None:
    heartbeat = second(begin(1), 1.0, [beat(1)])
    for tenth in range(11, 209):
        heartbeat = heartbeat.tick(tenth / 10, parent_gone=False)
        assert heartbeat.abort_reason is None
    for tenth in range(209, 213):
        heartbeat = heartbeat.tick(tenth / 10, parent_gone=False)
    assert heartbeat.abort_reason == AbortReason(0, "rank 0 has been silent for 20 s", silent=True)


def test_time_in_which_this_process_was_stopped_is_no_silence_of_the_store() -> None:
    heartbeat = second(begin(1), 1.0, [beat(1)]).tick(1.1, parent_gone=False)
    assert heartbeat.tick(1000.0, parent_gone=False).abort_reason is None


def test_who_stood_still_and_was_given_up_says_so_of_itself() -> None:
    heartbeat = second(begin(1), 1.0, [beat(1)])
    given_up = AbortReason(1, "rank 1 has been silent for 20 s", silent=True)
    for now in (31.0, 31.1):
        heartbeat = second(heartbeat, now, [beat(2)], given_up)
    suspended = "rank 1 was suspended for 30 s, and the others dropped it"
    assert heartbeat.abort_reason == AbortReason(1, suspended, silent=False)


def test_who_stood_still_and_finds_the_store_gone_says_so_of_itself() -> None:
    heartbeat = second(begin(1), 1.0, [beat(1)]).disconnect(31.0).tick(31.0, parent_gone=False)
    assert heartbeat.abort_reason is not None and heartbeat.abort_reason.rank == 1


def test_long_after_a_standstill_the_silence_of_another_is_its_death() -> None:
    heartbeat = second(begin(1, size=3), 1.0, [beat(1), beat(1)])
    for now in range(31, 40):
        heartbeat = second(heartbeat, now, [beat(now), beat(now)])
    for now in range(40, 62):
        heartbeat = second(heartbeat, now, [beat(now), beat(40)])
    assert heartbeat.prepare_beat(BUSY, 62.0).message.abort_reason == AbortReason(2, SILENT, silent=True)


def test_a_rank_that_lives_but_does_nothing_while_others_wait_is_told_of() -> None:
    waiting = Beat(9, State.RUNNING, 5, waiting=True).dumps()
    idle = Beat(9, State.RUNNING, 4, waiting=False, idle_seconds=1801.0).dumps()
    heartbeat = second(begin(0, size=3), 1.0, [waiting, idle]).prepare_beat(BUSY, 1.0)
    sentence = "rank 2 is alive, but has been idle for 30 min while others wait for it"
    assert heartbeat.message.abort_reason == AbortReason(2, sentence, silent=False)


def test_without_its_parent_a_rank_ends_at_once() -> None:
    heartbeat = begin().tick(1.0, parent_gone=True)
    assert heartbeat.abort_reason == AbortReason(
        None, "the command that started this rank has exited", silent=False
    )


def test_finished_ranks_wait_for_all_and_the_host_of_the_store_exits_last() -> None:
    keeper, other = begin(0).finish_work(), begin(1).finish_work()
    keeper = second(keeper, 1.0, [beat(1)])
    assert not keeper.all_done
    keeper = second(keeper, 2.0, [beat(2, State.DONE)])
    assert keeper.all_done and not keeper.can_leave
    keeper = second(keeper.leave(), 2.1, [beat(2, State.DONE)])
    assert not keeper.can_leave and not keeper.is_silent
    other = second(other, 2.0, [beat(2, State.DONE)])
    assert other.all_done and not other.can_leave
    other = second(other.leave(), 2.1, [beat(2, State.DONE)])
    assert other.can_leave and other.is_silent
    assert second(keeper, 2.2, [beat(3, State.LEFT)]).can_leave


def test_the_store_may_go_when_this_rank_needs_it_no_more() -> None:
    heartbeat = second(begin(1).finish_work(), 1.0, [beat(1, State.DONE)]).leave().disconnect(1.1)
    assert heartbeat.is_silent and heartbeat.abort_reason is None


def test_who_fails_tells_why_and_ends_by_itself() -> None:
    heartbeat = second(begin(1), 1.0, [beat(1)]).set_names(["rank 0 on a", "rank 1 on b"])
    heartbeat = heartbeat.fail("ValueError: too hard", 1.1)
    heartbeat = heartbeat.receive([beat(2), beat(1)], None, 1.15)  # an answer to what it said before
    assert not heartbeat.is_reported
    heartbeat = second(heartbeat, 1.2, [beat(2)])
    own = AbortReason(1, "rank 1 on b failed: ValueError: too hard", silent=False)
    assert heartbeat.message.abort_reason == own and heartbeat.message.beat.state is State.LEFT
    assert heartbeat.is_reported and heartbeat.tick(99.0, parent_gone=False).abort_reason is None


def test_who_fails_and_cannot_reach_the_store_does_not_wait() -> None:
    heartbeat = begin(1).fail("ValueError", 1.0).disconnect(1.1)
    assert heartbeat.is_reported and heartbeat.abort_reason is None
