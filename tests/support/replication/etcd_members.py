"""Members of an etcd on this host, as processes that a test starts and kills."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.ports import free_ports

from cotswold.errors import MachineError
from cotswold.replication.metadata import Etcd, EtcdStore, Tls

_START_SECONDS = 20


class Members:
    """Endpoints and processes of the members."""

    def __init__(self, endpoints: tuple[str, ...], processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.endpoints, self.processes = endpoints, processes

    def kill(self, at: int) -> None:
        self.processes[at].kill()
        self.processes[at].wait(10)


@contextmanager
def members(
    folder: Path, count: int, tls: Tls | None = None, more: Sequence[str] = (), timeout_seconds: float = 2.0
) -> Iterator[Members]:
    """Yield ``count`` responsive members, and end them with the block. ``more``: options for each."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed")
    with ExitStack() as stack:
        ports = stack.enter_context(free_ports(2 * count))
        endpoints = tuple(f"127.0.0.1:{port}" for port in ports[:count])
        peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
        cluster = ",".join(f"member{at}={peer}" for at, peer in enumerate(peers))
        scheme = "http" if tls is None else "https"
        processes: list[subprocess.Popen[bytes]] = []
        for at, (endpoint, peer) in enumerate(zip(endpoints, peers, strict=True)):
            options = {
                "name": f"member{at}",
                "data-dir": str(folder / f"member{at}"),
                "listen-client-urls": f"{scheme}://{endpoint}",
                "advertise-client-urls": f"{scheme}://{endpoint}",
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": cluster,
                "heartbeat-interval": "50",
                "election-timeout": "500",
                "logger": "zap",
                "log-outputs": str(folder / f"member{at}.log"),
            }
            words = [program, *(f"--{name}={value}" for name, value in options.items()), *more]
            process = stack.enter_context(subprocess.Popen(words, env=variables))
            stack.callback(process.kill)
            processes.append(process)
        _wait(Etcd(endpoints, tls, timeout_seconds=timeout_seconds), processes)
        yield Members(endpoints, processes)


def _wait(etcd: Etcd, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until each member knows a leader."""
    deadline = time.monotonic() + _START_SECONDS
    for endpoint in etcd.endpoints:
        with EtcdStore(Etcd((endpoint,), etcd.tls, timeout_seconds=etcd.timeout_seconds)) as state:
            while True:
                assert all(each.poll() is None for each in processes), "etcd ended"
                try:
                    state.read("nothing/")
                    break
                except MachineError:
                    assert time.monotonic() < deadline, "etcd does not answer"
                    time.sleep(0.05)
