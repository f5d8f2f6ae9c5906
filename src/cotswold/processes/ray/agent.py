"""The agent on each machine of a Ray cluster: it forks processes, and reports their exits.

Knows: the fork server, asyncio. Does not know: Ray (which calls it), what the processes do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from cotswold import __version__
from cotswold.errors import CotswoldError, UserError
from cotswold.host import Call, ForkServer, Process, granted_cores, token_of
from cotswold.processes.credentials import has_any_token
from cotswold.processes.ray.settings import fingerprint
from cotswold.processes.shutdown_notice import open_notice


@dataclass(frozen=True)
class MachineFacts:
    """A machine's description of itself."""

    hostname: str
    cores: int
    version: str
    token: str
    """Fingerprint of its token."""


@dataclass(frozen=True)
class StartRefusal:
    """Reason why a process was not started."""

    why: str
    is_users: bool
    """True if the user made a mistake."""


class Agent:
    """Starts processes on its machine; all methods are called from other machines."""

    def __init__(self, modules: Sequence[str]) -> None:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._server = ForkServer(modules, variables)
        self._lock = asyncio.Lock()
        self._notice: socket.socket | None = None
        self._is_closing = False
        self._processes: dict[int, Process] = {}
        self._exits: dict[int, asyncio.Future[tuple[int, str]]] = {}

    async def facts(self) -> MachineFacts:
        """The facts of this machine."""
        self._listen()
        return MachineFacts(
            socket.gethostname(), granted_cores(environ={}), __version__, fingerprint(token_of(os.environ))
        )

    async def start(self, key: int, call: Call, tokens: Sequence[str] = ()) -> int | StartRefusal:
        """Start a process, identified by ``key`` from now on, and return its process number.

        ``tokens`` are fingerprints of tokens, of which this machine must have one.
        """
        loop = asyncio.get_running_loop()
        if self._is_closing:
            return StartRefusal(
                f"{call.name} cannot be started: {socket.gethostname()} is shutting down", False
            )
        try:
            if tokens and not has_any_token(tokens, os.environ):
                raise UserError(
                    f"{call.name} cannot be started: {socket.gethostname()} lacks the token of the cluster "
                    "of parameter servers; start its 'cotswold worker' with COTSWOLD_CLUSTER_TOKEN, or with "
                    "COTSWOLD_CLUSTER_TOKEN_FILE naming the file that contains it"
                )
            async with self._lock:
                process = await loop.run_in_executor(None, self._server.start, call)
        except CotswoldError as error:
            return StartRefusal(str(error), isinstance(error, UserError))
        self._processes[key], self._exits[key] = process, loop.create_future()
        loop.add_reader(process.fileno(), self._set_exit, key)
        return process.pid

    async def wait_exit(self, key: int) -> tuple[int, str]:
        """Wait until a process exits; return its code and reason."""
        return await asyncio.shield(self._exits[key])

    async def send(self, key: int, number: int) -> None:
        """Send a signal to a process."""
        self._processes[key].send(number)

    async def end(self, key: int) -> None:
        """Kill a process and its children."""
        process = self._processes[key]
        asyncio.get_running_loop().remove_reader(process.fileno())
        process.end()
        self._set_exit(key)

    def _listen(self) -> None:
        """Watch for the shutdown notice of this machine."""
        self._notice = self._notice or open_notice(os.environ)
        if self._notice is not None:
            asyncio.get_running_loop().add_reader(self._notice, self._close)

    def _close(self) -> None:
        """Terminate all processes gracefully; after their exits the machine may shut down."""
        assert self._notice is not None, "its notice was read"
        asyncio.get_running_loop().remove_reader(self._notice)
        self._is_closing = True
        for process in self._processes.values():
            process.send(signal.SIGTERM)
        self._exit_if_empty()

    def _exit_if_empty(self) -> None:
        if self._is_closing and self._notice is not None and all(end.done() for end in self._exits.values()):
            self._notice.close()

    def _set_exit(self, key: int) -> None:
        process, end = self._processes[key], self._exits[key]
        code = process.code()
        if code is not None and not end.done():
            if process.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(process.fileno())
            end.set_result((code, process.why()))
            self._exit_if_empty()
