"""Effects of signals, without a process or a clock."""

from __future__ import annotations

import signal

import pytest

from cotswold.launch.signals import ECHO_SECONDS, SignalRequests, signals_to_forward

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
LATER = 2 * ECHO_SECONDS


@pytest.mark.parametrize(
    ("heard", "passed"),
    [
        ([], []),
        ([(INT, 0.0)], [INT]),
        ([(TERM, 0.0)], [TERM]),
        ([(INT, 0.0), (INT, LATER)], [INT, TERM]),
        ([(TERM, 0.0), (TERM, LATER)], [TERM, INT]),
        ([(INT, 0.0), (TERM, 0.0)], [INT, TERM]),
        ([(INT, 0.0), (INT, LATER), (INT, LATER)], [INT, TERM]),
    ],
)
def test_the_first_signal_asks_to_stop_and_a_second_to_leave(
    heard: list[tuple[int, float]], passed: list[int]
) -> None:
    assert signals_to_forward(heard) == passed


def test_hanging_up_asks_to_save_as_sigterm_does() -> None:
    assert signals_to_forward([(HUP, 0.0)]) == [TERM]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalRequests().handle_signals() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert not asked.received
            signal.raise_signal(signal.SIGTERM)
            assert asked.first == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_same_signal_again_within_a_moment_is_an_echo() -> None:
    assert signals_to_forward([(INT, 0.0), (INT, ECHO_SECONDS / 2)]) == [INT]
