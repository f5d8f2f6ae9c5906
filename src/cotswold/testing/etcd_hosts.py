"""An etcd cluster whose members run on simulated hosts, and can be started, killed and restarted.

Knows: the program `etcd`, its options, its health endpoint. Does not know: the stored keys.

A member is what a distribution's package would run: it keeps its data in a folder, and a restart after a kill
uses the same arguments.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from cotswold.errors import MachineError
from cotswold.testing.certificates import Certificate
from cotswold.testing.hosts import Hosts

CLIENT_PORT, PEER_PORT = 2379, 2380
START_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 2.0
_HEARTBEAT_MS, _ELECTION_MS = 100, 1000
_LOG = "etcd.log"


@dataclass(frozen=True)
class EtcdPlan:
    """Placement of the members of an etcd cluster.

    Attributes:
        hosts: Number of the host of each member.
        folders: Folder of each member for its data and log.
        network: Number of the interface by which members are reached.
        certificates: Certificates by host number, for members and clients; without them nothing is encrypted.
    """

    hosts: Sequence[int]
    folders: Sequence[Path]
    network: int = 0
    certificates: Mapping[int, Certificate] = field(default_factory=dict)


class EtcdHosts:
    """An etcd cluster for a `with` block, which starts the members and kills them at the end.

    Args:
        hosts: The hosts.
        plan: Placement of the members.

    Raises:
        MachineError: etcd is not installed or does not answer.
    """

    def __init__(self, hosts: Hosts, plan: EtcdPlan) -> None:
        self._hosts, self._plan = hosts, plan
        self._scheme = "https" if plan.certificates else "http"
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(plan.hosts)

    def __enter__(self) -> EtcdHosts:
        try:
            for at in range(len(self._plan.hosts)):
                self.start(at)
            self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Client addresses (HOST:PORT) of the members."""
        return tuple(f"{self._address(at)}:{CLIENT_PORT}" for at in range(len(self._plan.hosts)))

    def pid(self, at: int) -> int | None:
        """Return the process id of a member; None if it does not run.

        Args:
            at: Number of the member, from 0.
        """
        process = self._processes[at]
        return None if process is None or process.poll() is not None else process.pid

    def start(self, at: int) -> None:
        """Start a member that does not run; it continues with its existing data.

        Args:
            at: Number of the member, from 0.

        Raises:
            MachineError: etcd is not installed.
        """
        assert self.pid(at) is None, "the member is already running"
        program = shutil.which("etcd")
        if program is None:
            raise MachineError("etcd is not installed; install it (Debian's etcd-server)")
        folder = self._plan.folders[at]
        folder.mkdir(parents=True, exist_ok=True)
        variables = {name: text for name, text in os.environ.items() if not name.startswith("ETCD_")}
        self._processes[at] = self._hosts.start(
            self._plan.hosts[at], [program, *self._options(at)], variables, folder / _LOG
        )

    def kill(self, at: int) -> None:
        """Kill a member as a power failure does.

        Args:
            at: Number of the member, from 0.
        """
        process = self._processes[at]
        if process is not None:
            process.kill()
            process.wait(START_SECONDS)

    def close(self) -> None:
        """Kill all members."""
        for at in range(len(self._processes)):
            self.kill(at)

    def is_well(self, at: int) -> bool:
        """Return True if a member answers and knows a leader.

        Args:
            at: Number of the member, from 0.
        """
        host, connection = self._plan.hosts[at], self._connection(at)
        try:
            with self._hosts.entered(host):
                connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read())["health"] == "true")
        except (OSError, HTTPException, ValueError, LookupError):
            return False
        finally:
            connection.close()

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until all members are healthy.

        Args:
            seconds: Maximum time to wait.

        Raises:
            MachineError: A member has ended, or does not answer in time; the message names it.
        """
        deadline = time.monotonic() + seconds
        for at, folder in enumerate(self._plan.folders):
            while not self.is_well(at):
                if self.pid(at) is None or time.monotonic() > deadline:
                    state = "has ended" if self.pid(at) is None else "does not answer"
                    raise MachineError(f"member {at} of etcd {state}; look at {folder / _LOG}")
                time.sleep(_LOOK_SECONDS)

    def _address(self, at: int) -> str:
        return self._hosts.address(self._plan.hosts[at], self._plan.network)

    def _connection(self, at: int) -> HTTPConnection:
        address, own = self._address(at), self._plan.certificates.get(self._plan.hosts[at])
        if own is None:
            return HTTPConnection(address, CLIENT_PORT, timeout=_ANSWER_SECONDS)
        context = ssl.create_default_context(cafile=str(own.authority))
        context.load_cert_chain(own.certificate, own.key)
        return HTTPSConnection(address, CLIENT_PORT, timeout=_ANSWER_SECONDS, context=context)

    def _options(self, at: int) -> list[str]:
        client, peer = f"{self._address(at)}:{CLIENT_PORT}", self._peer(at)
        options = {
            "name": _name(at),
            "data-dir": str(self._plan.folders[at] / "data"),
            "listen-client-urls": f"{self._scheme}://{client}",
            "advertise-client-urls": f"{self._scheme}://{client}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"{_name(each)}={self._peer(each)}" for each in self._all),
            "heartbeat-interval": str(_HEARTBEAT_MS),
            "election-timeout": str(_ELECTION_MS),
            "logger": "zap",
        }
        return [*(f"--{name}={text}" for name, text in options.items()), *self._secured(at)]

    def _secured(self, at: int) -> list[str]:
        own = self._plan.certificates.get(self._plan.hosts[at])
        if own is None:
            return []
        words = []
        for side in ("", "peer-"):
            words += [f"--{side}cert-file={own.certificate}", f"--{side}key-file={own.key}"]
            words += [f"--{side}trusted-ca-file={own.authority}", f"--{side}client-cert-auth"]
        return words

    def _peer(self, at: int) -> str:
        return f"{self._scheme}://{self._address(at)}:{PEER_PORT}"

    @property
    def _all(self) -> range:
        return range(len(self._plan.hosts))


def _name(at: int) -> str:
    return f"member{at}"
