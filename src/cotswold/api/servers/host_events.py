"""The file with the events of a host, in a folder whose disk may be full at times.

Knows: lines of JSON, what waits while the disk takes nothing. Does not know: what happens on a host.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

WAITING_BYTES_MAX = 1 << 20
"""Of events that wait for room on the disk; those that come after these are not written down."""


class EventFile:
    """The file at ``path``; use in a ``with`` statement. An event that cannot be written waits for the next
    one, and ``say`` hears a sentence when that begins, and when it is over."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()
        """What is not in the file yet; of its first line a part may be."""
        self._left_out = 0
        """Events for which there was no room here either."""
        self._is_failing = False

    def write(self, **event: object) -> None:
        """One event, as a line."""
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
                self._say(f"events cannot be written to {self._path} ({error.strerror}); they wait for room")
            self._is_failing = True
            return
        if self._is_failing:
            lacks = f"; it lacks {self._left_out} of them" if self._left_out else ""
            self._say(f"events are written to {self._path} again{lacks}")
        self._is_failing, self._left_out = False, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
