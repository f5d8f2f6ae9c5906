"""Descriptors that a thread waits for: pipes that wake it, and whether one can be read, whatever its number.

Knows: pipes, selectors. Does not know: who waits, for what.
"""

from __future__ import annotations

import os
import selectors
from typing import Protocol


class HasDescriptor(Protocol):
    """What has a descriptor."""

    def fileno(self) -> int:
        """Its number."""
        ...


def wake_pipe() -> tuple[int, int]:
    """The two ends of a pipe, to be read and to be written to: neither blocks, no child process has them."""
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return ends


def is_readable(descriptor: int | HasDescriptor, seconds: float) -> bool:
    """Whether a descriptor can be read within so many seconds; `select` takes only numbers below 1,024."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
