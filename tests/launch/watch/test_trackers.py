"""Ranks that count as dead, without a process or a clock."""

from __future__ import annotations

from cotswold.launch.watch.trackers import SilenceTracker


def test_a_counter_that_stands_still_is_death_after_the_timeout_and_not_before() -> None:
    silence = SilenceTracker(longest_gap_seconds=3, now=0)
    for second in range(1, 7):
        silence = silence.advance({1: 5, 2: second}, now=second)
        assert silence.find_silent_rank(timeout_seconds=4) == (1 if second == 6 else None)


def test_a_counter_that_moves_again_is_activity() -> None:
    silence = SilenceTracker(longest_gap_seconds=3, now=0)
    for second, beat in enumerate([1, 1, 1, 2, 2, 2]):
        silence = silence.advance({1: beat}, now=second)
        assert silence.find_silent_rank(timeout_seconds=2.5) is None


def test_time_in_which_the_listener_did_not_listen_is_nobodys_silence() -> None:
    silence = SilenceTracker(longest_gap_seconds=3, now=0)
    silence = silence.advance({1: 7}, now=1)
    silence = silence.advance({1: 7}, now=100)
    assert silence.find_silent_rank(timeout_seconds=3) is None


def test_the_one_that_has_been_silent_for_longest_is_named() -> None:
    silence = SilenceTracker(longest_gap_seconds=3, now=0)
    for second in range(10):
        silence = silence.advance({1: min(second, 4), 2: min(second, 2), 3: min(second, 3)}, now=second)
    assert silence.find_silent_rank(timeout_seconds=1) == 2


def test_who_has_left_is_not_watched() -> None:
    silence = SilenceTracker(longest_gap_seconds=3, now=0)
    for second in range(5):
        silence = silence.advance({1: 7}, now=second)
    silence = silence.advance({}, now=6)
    assert silence.find_silent_rank(timeout_seconds=1) is None
