"""Descriptors that a thread waits for: pipes that wake it, and a readability check for any descriptor number.

Knows: pipes, selectors. Does not know: the waiting threads.
"""

from __future__ import annotations

import os
import selectors
from typing import Protocol


class HasDescriptor(Protocol):
    """An object with a file descriptor."""

    def fileno(self) -> int:
        """Number of the descriptor."""
        ...


def wake_pipe() -> tuple[int, int]:
    """Create a non-blocking pipe that child processes do not inherit; return its read and write ends."""
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return ends


def is_readable(descriptor: int | HasDescriptor, seconds: float) -> bool:
    """True if a descriptor becomes readable within ``seconds``; `select` only takes numbers below 1,024."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
