"""Signals while a run is trained: Ctrl-C in a program or notebook, and whatever ends a process of its own.

Knows: signals, that handlers belong to the main thread and are given back, the words for each strategy. Does
not know: what is stopped.
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
LEFT = "left at once; nothing since the last checkpoint is kept"
STEP = "stopping after this step; once more to leave at once, unsaved"
_OF_STRATEGIES = {
    "batch": "stopping after this portion; once more to leave at once, unsaved",
    "downpour": (
        "stopping: replicas push what they have in hand, then a checkpoint is saved; once more to leave at "
        "once, unsaved"
    ),
}


def words_for(strategy: str) -> str:
    """What is said when a run of a strategy is asked to stop: what happens before it does.

    >>> words_for("supervised")
    'stopping after this step; once more to leave at once, unsaved'
    """
    return _OF_STRATEGIES.get(strategy, STEP)


@contextmanager
def interruptible(stop: Stop, words: str = STEP) -> Iterator[None]:
    """The first SIGINT asks for a stop, which ``words`` say; a second one raises KeyboardInterrupt at once.

    Other threads than the main one hear no signals; there nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt(LEFT)
        stop.signal, stop.interrupted = number, True
        _tell(f"\n{words}\n".encode())

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


@contextmanager
def stopping(stop: Stop, words: str = STEP, left: str = LEFT) -> Iterator[None]:
    """For a process that trains and does nothing else: the first SIGINT, SIGTERM or SIGHUP asks for a stop,
    which ``words`` say; a second one leaves at once, and ``left`` says what that means.

    The same signal again within a moment is an echo: batch systems signal a launcher and its ranks, and the
    launcher passes on what it got. SIGHUP never hurries, for it comes by itself when a terminal closes and,
    from systemd, after SIGTERM; where it was ignored (nohup) it stays so.
    """
    first = 0.0

    def handle(number: int, _: object) -> None:
        nonlocal first
        if stop.signal is None:
            first = time.monotonic()
        elif number == signal.SIGHUP or (number == stop.signal and time.monotonic() - first < ECHO_SECONDS):
            return
        if stop.signal is not None:
            _tell(f"{left}\n".encode())
            os._exit(128 + number)
        stop.signal = number
        _tell(f"\n{words}\n".encode())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _tell(sentence: bytes) -> None:
    """Write to the terminal out of a signal handler, even where there is no terminal any more."""
    with suppress(OSError):
        os.write(2, sentence)
