"""The event file of a host, in a folder whose disk may be full.

Knows: lines of JSON, the queue of events during write errors. Does not know: the events.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

WAITING_BYTES_MAX = 1 << 20
"""Maximum size of events queued during write errors; further events are dropped."""


class EventFile:
    """The file at ``path``; use it in a ``with`` statement.

    An event that cannot be written waits for the next one; ``say`` receives a message when writing starts to
    fail and when it works again.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()
        """Bytes not yet in the file; the first line may be partly written."""
        self._left_out = 0
        """Number of events dropped because this queue was full."""
        self._is_failing = False

    def write(self, **event: object) -> None:
        """Write one event as a line."""
        line = json.dumps(event).encode() + b"\n"
        if len(self._waiting) + len(line) <= WAITING_BYTES_MAX:
            self._waiting += line
        else:
            self._left_out += 1
        try:
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
        except OSError as error:
            if not self._is_failing:
                self._say(f"events cannot be written to {self._path} ({error.strerror}); they are queued")
            self._is_failing = True
            return
        if self._is_failing:
            lacks = f"; {self._left_out} of them were lost" if self._left_out else ""
            self._say(f"events are written to {self._path} again{lacks}")
        self._is_failing, self._left_out = False, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
