"""Detection of a hanging step, with a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from cotswold.host.hang_detection import Hang, HangDetector, ProcessActivity

BOUND = 10.0
See = Callable[[float], Mapping[int, ProcessActivity]]


class Looking:
    """Checks once per pause, with given observations for any second."""

    def __init__(self) -> None:
        self.now, self.standstill = 100.0, HangDetector(BOUND)
        self.ended = 0

    def step(self, seconds: float, see: See, *, says_how_long: bool = True) -> tuple[float, Hang] | None:
        """Run a step of some seconds; return the time and the result of a detection."""
        began = self.now
        while self.now - began < seconds:
            still = self.standstill.check(began, self.ended, lambda: see(self.now - began), self.now)
            if still is not None:
                return self.now - began, still
            self.now += self.standstill.pause_seconds
        self.ended += says_how_long
        return None

    def stand_still(self, seconds: float) -> None:
        """Pass time without checks."""
        self.now += seconds


def waiting(*processes: int, core_share: float = 0.0) -> See:
    return lambda second: {each: ProcessActivity("S", core_share * second, 7) for each in processes}


def computing(*processes: int) -> See:
    return lambda second: {each: ProcessActivity("S", second, 7) for each in processes}


def test_a_stopped_process_is_named_after_the_bound_whatever_others_do() -> None:
    looking = Looking()
    looking.step(2.0, computing(1, 2, 3))
    found = looking.step(60.0, lambda second: {**computing(1, 3)(second), 2: ProcessActivity("T", 5.0, 7)})
    assert found is not None
    second, still = found
    assert (still.processes, still.is_stopped) == ((2,), True)
    assert BOUND <= still.seconds <= second <= BOUND + 2.0


def test_a_process_that_goes_on_before_the_bound_is_left_alone() -> None:
    state = {True: "T", False: "S"}
    found = Looking().step(60.0, lambda second: {1: ProcessActivity(state[second % 9 < 8], 3 * second, 7)})
    assert found is None


@pytest.mark.parametrize("state", ["R", "D", "t"])
def test_a_process_that_wants_to_compute_waits_for_a_disk_or_is_debugged_does_not_stand_still(
    state: str,
) -> None:
    assert (
        Looking().step(
            900.0, lambda second: {1: ProcessActivity("S", 0.0, 7), 2: ProcessActivity(state, 0.0, 7)}
        )
        is None
    )


def test_a_long_step_of_which_one_process_computes_is_left_alone() -> None:
    assert Looking().step(900.0, lambda second: {**waiting(1, 2)(second), **computing(3)(second)}) is None


def test_where_all_wait_the_step_stands_still_after_three_bounds_and_the_first_after_four_times_that() -> (
    None
):
    looking = Looking()
    (first,) = [looking.step(900.0, waiting(1, 2))]
    assert first is not None
    assert (first[1].processes, first[1].is_stopped) == ((1, 2), False)
    assert 12 * BOUND <= first[0] <= 12 * BOUND + 2.0
    looking = Looking()
    looking.step(2.0, computing(1))
    later = looking.step(900.0, waiting(1))
    assert later is not None and 3 * BOUND <= later[0] <= 3 * BOUND + 2.0


def test_who_has_waited_long_in_a_step_that_ended_may_wait_for_three_times_as_long() -> None:
    looking = Looking()
    assert looking.step(50.0, waiting(1)) is None
    assert looking.step(149.0, waiting(1)) is None
    found = looking.step(9000.0, waiting(1))
    assert found is not None and 3 * 149.0 <= found[0] <= 3 * 149.0 + 5.0


def test_whoever_reads_over_a_network_and_computes_little_is_left_alone() -> None:
    looking = Looking()
    looking.step(2.0, computing(1))
    assert (
        looking.step(900.0, lambda second: {1: ProcessActivity("S", 0.001 * second, int(second / 5))}) is None
    )


def test_a_heartbeat_is_no_computing() -> None:
    looking = Looking()
    looking.step(2.0, computing(1))
    assert looking.step(900.0, waiting(1, 2, core_share=0.01)) is not None
    assert Looking().step(900.0, waiting(1, 2, core_share=0.05)) is None


def test_time_in_which_whoever_looks_stood_still_counts_for_nobody() -> None:
    standstill, see = HangDetector(BOUND), waiting(1)
    for now in (0.0, 1.0, 2.0):
        assert standstill.check(0.0, 1, lambda: see(0.0), now) is None
    assert standstill.check(0.0, 1, lambda: see(0.0), 5000.0) is None


def test_nor_does_it_make_a_step_long() -> None:
    looking = Looking()
    began = looking.now
    for _ in range(3):
        assert looking.standstill.check(began, 0, lambda: waiting(1)(0.0), looking.now) is None
        looking.stand_still(3600.0)
    looking.ended += 1
    found = looking.step(9000.0, waiting(1))
    assert found is not None and 3 * BOUND <= found[0] <= 3 * BOUND + 5.0


def test_what_says_nothing_of_how_long_a_step_takes_is_neither_the_first_nor_the_longest() -> None:
    looking = Looking()
    assert looking.step(100.0, waiting(1), says_how_long=False) is None
    first = looking.step(9000.0, waiting(1))
    assert first is not None and 12 * BOUND <= first[0] <= 12 * BOUND + 2.0
    looking = Looking()
    looking.step(2.0, computing(1))
    looking.step(100.0, computing(1), says_how_long=False)
    later = looking.step(9000.0, waiting(1))
    assert later is not None and 3 * BOUND <= later[0] <= 3 * BOUND + 10.0


def test_of_short_steps_nothing_is_asked() -> None:
    def see() -> Mapping[int, ProcessActivity]:
        raise AssertionError("it costs time")

    standstill = HangDetector(BOUND)
    for second in range(100):
        assert standstill.check(float(second), second, see, float(second)) is None


def test_where_the_system_says_nothing_nobody_stands_still() -> None:
    assert Looking().step(900.0, lambda second: {}) is None
