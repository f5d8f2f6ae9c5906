"""Processes on hosts that are network namespaces: a fork server starts them, and each enters its host.

Knows: how a process enters a host. Does not know: its work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cotswold.errors import UserError
from cotswold.host import Call, ForkServer, Process
from cotswold.host.processes import import_function
from cotswold.testing import Hosts
from cotswold.testing.namespaces import entered


class OnHost:
    """A process on one of the hosts: `Process`."""

    def __init__(self, process: Process, machine: str) -> None:
        self._process, self.machine = process, machine
        self.name, self.pid = process.name, process.pid

    def fileno(self) -> int:
        return self._process.fileno()

    def code(self) -> int | None:
        return self._process.code()

    def why(self) -> str:
        return self._process.why()

    def send(self, number: int) -> None:
        self._process.send(number)

    def end(self) -> None:
        self._process.end()


class HostProcesses:
    """Starts processes on hosts: `Processes`. The coordinator is on the first; hosts join, and are lost."""

    def __init__(self, server: ForkServer, hosts: Hosts, *, there: int | None = None, cores: int = 1) -> None:
        self._server, self._hosts, self._cores = server, hosts, cores
        self._there = list(range(hosts.count if there is None else there))
        self._started: list[OnHost] = []

    def machines(self) -> Mapping[str, int]:
        return {f"host-{number}": self._cores for number in self._there}

    def join(self, host: int) -> None:
        """Add a host."""
        self._there.append(host)

    def leave(self, host: int) -> None:
        """Lose a host with all its processes."""
        self._there.remove(host)
        for process in self._started:
            if process.machine == f"host-{host}":
                process.send(signal.SIGKILL)

    def start(self, call: Call, machine: str | None = None) -> Process:
        taken = [process.machine for process in self._started if process.code() is None]
        name = machine or min(self.machines(), key=taken.count)
        if name not in self.machines():
            raise UserError(f"{call.name} is to run on {name}, which is not there")
        where = self._hosts.namespace(int(name.removeprefix("host-")))
        arguments = {
            "namespace": str(where),
            "function": call.function,
            "arguments": dict(call.arguments),
        }
        entering = replace(
            call, function="tests.support.processes.host_processes:on_host", arguments=arguments
        )
        self._started.append(OnHost(self._server.start(entering), name))
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            process.end()


def on_host(*, namespace: str, function: str, arguments: Mapping[str, object]) -> object:
    """Enter the host of this process, then call the function."""
    with entered(Path(namespace)):
        assert Path(f"/proc/{os.getpid()}/ns/net").stat().st_ino == Path(namespace).stat().st_ino
        return import_function(function)(**arguments)
