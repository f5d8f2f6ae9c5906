"""Signals during training: Ctrl-C in a program or notebook, and signals that end a process.

Knows: signals, handlers of the main thread and their restoration, messages per strategy. Does not know: the
stopped work.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotswold.run import Stop

ECHO_SECONDS = 0.3
LEFT = "left at once; progress since the last checkpoint is lost"
STEP = "stopping after this step; press again to stop at once without saving"
_STOP_MESSAGES = {
    "batch": "stopping after this portion; press again to stop at once without saving",
    "downpour": (
        "stopping: replicas push their pending gradients, then a checkpoint is saved; press again to stop "
        "at once without saving"
    ),
}


def stop_message(strategy: str) -> str:
    """Return the message for a request to stop: what a strategy does before it stops.

    >>> stop_message("supervised")
    'stopping after this step; press again to stop at once without saving'
    """
    return _STOP_MESSAGES.get(strategy, STEP)


@contextmanager
def catch_sigint(stop: Stop, words: str = STEP) -> Iterator[None]:
    """Request a stop at the first SIGINT, with the message ``words``; a second one raises KeyboardInterrupt.

    Only the main thread receives signals; in other threads this has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt(LEFT)
        stop.signal, stop.interrupted = number, True
        _write_to_terminal(f"\n{words}\n".encode())

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


@contextmanager
def graceful_exit(stop: Stop, words: str = STEP, left: str = LEFT) -> Iterator[None]:
    """Request a stop at the first SIGINT, SIGTERM or SIGHUP, for a process that only trains.

    The first signal shows the message ``words``. A second one shows ``left`` and exits at once. A repetition
    of the same signal within ECHO_SECONDS is ignored: batch systems signal a launcher and its ranks, and the
    launcher forwards its signal. SIGHUP never counts as a second signal, because it arrives when a terminal
    closes and, from systemd, after SIGTERM. If SIGHUP was ignored (nohup), it stays ignored.
    """
    first = 0.0

    def handle(number: int, _: object) -> None:
        nonlocal first
        if stop.signal is None:
            first = time.monotonic()
        elif number == signal.SIGHUP or (number == stop.signal and time.monotonic() - first < ECHO_SECONDS):
            return
        if stop.signal is not None:
            _write_to_terminal(f"{left}\n".encode())
            os._exit(128 + number)
        stop.signal = number
        _write_to_terminal(f"\n{words}\n".encode())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _write_to_terminal(sentence: bytes) -> None:
    """Write to the terminal from a signal handler, ignoring a closed terminal."""
    with suppress(OSError):
        os.write(2, sentence)
