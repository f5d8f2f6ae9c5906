"""The process that a connection belongs to: a fork of it has neither the thread nor the locks.

Knows: the numbers of processes. Does not know: what is connected.
"""

from __future__ import annotations

import os

from cotswold.errors import UserError


class OwnerProcess:
    """The process that connected to ``where``."""

    def __init__(self, where: str) -> None:
        self._where, self._pid = where, os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this is that process, and no fork of it."""
        return self._pid == os.getpid()

    def require_current(self) -> None:
        """Raise UserError in a fork. Call it before any lock is taken: another thread may have held the lock
        when the process was forked."""
        if not self.is_current:
            raise UserError(
                f"process {self._pid} connected to {self._where}, and this process, {os.getpid()}, is a fork "
                "of it: connect again in this process"
            )
