"""Ctrl-C, and a notebook's interrupt, while a call trains.

Knows: SIGINT, that handlers belong to the main thread and are given back. Does not know: what is stopped.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotswold.run import Stop


@contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """The first SIGINT asks for a stop after the step; a second one raises KeyboardInterrupt at once.

    Other threads than the main one hear no signals; there nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt("left at once; nothing since the last checkpoint is kept")
        stop.signal = number
        with suppress(OSError):  # a handler may interrupt whoever prints, so it does not print itself
            os.write(2, b"\nstopping after this step; once more to leave at once, unsaved\n")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
