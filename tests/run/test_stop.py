"""Requests to stop a run."""

from __future__ import annotations

import signal

import pytest

from cotswold.run import Stop


@pytest.mark.parametrize("before", [None, signal.SIGINT])
def test_a_request_keeps_an_earlier_signal(before: int | None) -> None:
    stop = Stop(before)
    stop.request()
    stop.request()
    assert stop.signal == (before or signal.SIGTERM) and not stop.interrupted


def test_an_interrupt_counts_once() -> None:
    stop = Stop()
    assert stop.interrupt() and stop.interrupted and stop.signal == signal.SIGINT
    assert not stop.interrupt()
