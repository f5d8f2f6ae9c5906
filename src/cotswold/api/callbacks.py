"""Receivers of a run's events in addition to its log.

Knows: that none may stop a run, that other processes may write the log. Does not know: the kinds of
events.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cotswold.files import MalformedError, open_reading, parse_object
from cotswold.training.callbacks.functions import OnEvent as OnEvent

if TYPE_CHECKING:
    from cotswold.run import Stop
    from cotswold.ui.display import Watch

POLL_SECONDS = 0.2


def combine_watches(watches: list[Watch]) -> Watch:
    """Return a function that passes events to all watches.

    A watch that raises is dropped; the exception of the last one is raised.
    """
    left = list(watches)

    def notify(event: Mapping[str, object]) -> None:
        for watch in [*left]:
            try:
                watch(event)
            except Exception:
                left.remove(watch)
                if not left:
                    raise  # reported in the run's log

    return notify


class Follower:
    """Pass on events that other processes append to a log, from a thread, in a `with` block.

    A request to stop is sent to this process as SIGINT, to which the launcher of the others listens.
    """

    def __init__(self, log: Path, callback: Watch, stop: Stop) -> None:
        self._log, self._callback, self._stop = log, callback, stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)
        self._position = 0
        if log.exists():
            with open_reading(log) as file:
                self._position = file.read().rfind(b"\n") + 1

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        passed_on = False
        while not self._ended.wait(POLL_SECONDS):
            self._read()
            if self._stop.signal is not None and not passed_on and not self._ended.is_set():
                passed_on = True
                os.kill(os.getpid(), signal.SIGINT)  # another signal might end this process
        self._read()

    def _read(self) -> None:
        if not self._log.exists():
            return
        with open_reading(self._log) as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                event = parse_object(line)
            except MalformedError:  # reported when the log is read later
                continue
            with suppress(Exception):  # a closed display; the run has its own log
                self._callback(event)
