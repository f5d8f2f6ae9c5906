"""This very process, forked: for what cannot be named and imported, such as a program's module and data set.

Knows: forks, signals, what a process inherits. Does not know: torch, what is inherited.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from cotswold.errors import UserError
from cotswold.host.fork_server_loop import ForkLoop, default_signals
from cotswold.host.parent_death import bound_to_parent
from cotswold.host.process_info import exit_code_of

_inherited: Mapping[str, object] = {}
"""What this process has in memory from the program that it was forked from."""


def inherited(name: str) -> object:
    """What the program gave under this name when this process was forked; raises UserError for nothing."""
    if name not in _inherited:
        raise UserError(
            f"this process has inherited no {name!r} ({', '.join(_inherited) or 'nothing'} alone); give it "
            "where the processes are forked"
        )
    return _inherited[name]


class Fork:
    """A copy of this process that forks others until nobody can ask it any more."""

    def __init__(
        self,
        control: socket.socket,
        mine: socket.socket,
        prepare: Callable[[], object],
        given: Mapping[str, object],
    ) -> None:
        """``control`` is its end of the requests, and ``mine`` the other, which it closes."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both would print what waits
        bind = bound_to_parent() or (lambda: None)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(control, mine, bind, prepare, given)

    def code(self) -> int | None:
        """Its exit code, or minus a signal's number; None while it runs."""
        return exit_code_of(self.pid) if self.pid else -signal.SIGKILL

    def end(self) -> None:
        """Kill it, and all that it has forked."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _serve(
    control: socket.socket,
    mine: socket.socket,
    bind: Callable[[], None],
    prepare: Callable[[], object],
    given: Mapping[str, object],
) -> NoReturn:
    global _inherited
    code = 1
    try:
        bind()
        os.setsid()
        default_signals()
        mine.close()
        _inherited = dict(given)
        ForkLoop(control, prepare).run(())
        code = 0
    finally:
        os._exit(code)
