"""Who is taken for dead, without a process or a clock."""

from __future__ import annotations

from cotswold.launch.watch import Watch


def test_a_counter_that_stands_still_is_death_after_the_patience_and_not_before() -> None:
    watch = Watch(longest_gap_seconds=3, now=0)
    for second in range(1, 7):
        watch.hear({1: "5", 2: str(second)}, now=second)
        assert watch.dead(patience_seconds=4) == (1 if second == 6 else None)


def test_a_counter_that_moves_again_is_life() -> None:
    watch = Watch(longest_gap_seconds=3, now=0)
    for second, beat in enumerate(["1", "1", "1", "2", "2", "2"]):
        watch.hear({1: beat}, now=second)
        assert watch.dead(patience_seconds=2.5) is None


def test_time_in_which_the_listener_did_not_listen_is_nobodys_silence() -> None:
    watch = Watch(longest_gap_seconds=3, now=0)
    watch.hear({1: "7"}, now=1)
    watch.hear({1: "7"}, now=100)
    assert watch.dead(patience_seconds=3) is None


def test_the_one_that_has_been_silent_for_longest_is_named() -> None:
    watch = Watch(longest_gap_seconds=3, now=0)
    for second in range(10):
        watch.hear({1: str(min(second, 4)), 2: str(min(second, 2)), 3: str(min(second, 3))}, now=second)
    assert watch.dead(patience_seconds=1) == 2


def test_who_has_left_is_not_watched() -> None:
    watch = Watch(longest_gap_seconds=3, now=0)
    for second in range(5):
        watch.hear({1: "7"}, now=second)
    watch.hear({}, now=6)
    assert watch.dead(patience_seconds=1) is None
