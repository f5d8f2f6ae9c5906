"""A fork of this process, for objects that cannot be imported by name, such as a data set.

Knows: forks, signals, inherited objects. Does not know: torch, the objects' meaning.
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
from cotswold.host.fork_server_loop import ForkServerLoop, default_signals
from cotswold.host.parent_death import pdeathsig_setter
from cotswold.host.process_info import exit_code_of

_inherited: Mapping[str, object] = {}
"""Objects that this process has inherited from the program that forked it."""


def inherited(name: str) -> object:
    """Return the object that the program gave under this name when it forked; UserError if there is none."""
    if name not in _inherited:
        raise UserError(
            f"this process has inherited no {name!r} (only {', '.join(_inherited) or 'nothing'}); give it "
            "when the server is created"
        )
    return _inherited[name]


class SelfFork:
    """A copy of this process that forks others until the request socket is closed."""

    def __init__(
        self,
        control: socket.socket,
        mine: socket.socket,
        prepare: Callable[[], object],
        given: Mapping[str, object],
    ) -> None:
        """Fork this process; ``control`` is the server's end of the socket, ``mine`` the client's."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise both would print the buffered text
        bind = pdeathsig_setter() or (lambda: None)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(control, mine, bind, prepare, given)

    def code(self) -> int | None:
        """Return the exit code, or minus a signal's number; None while it runs."""
        return exit_code_of(self.pid) if self.pid else -signal.SIGKILL

    def end(self) -> None:
        """Kill the server and all processes that it has forked."""
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
        ForkServerLoop(control, prepare).run(())
        code = 0
    finally:
        os._exit(code)
