"""Client processes of measurements: replicas without a network.

Knows: the life of one process, clocks, its report. Does not know: the use of reports.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import numpy as np

from cotswold.bench.server.client import Client
from cotswold.bench.server.unreplicated_servers import Transport, UnreplicatedServers, endpoint_on, environ_of
from cotswold.errors import MachineError
from cotswold.host import Call, ForkServer, Process, keep_freed_memory, token_of
from cotswold.wire import Shard

REQUESTED_RATE = "asked for"
"""Rate of replicas that a server never keeps waiting."""
_WAIT_SECONDS = 0.01
_LATEST_SECONDS = 60.0


@dataclass(frozen=True)
class ProcessReport:
    """A process's report of the time between the start signal and its end."""

    steps: int
    seconds: float
    cpu_seconds: float
    wait_seconds: tuple[float, float]
    """Seconds until a push and a pull are answered: the median, and the ninth decile."""


def name_of(number: int) -> str:
    """The name of the process with this number."""
    return f"replica-{number}"


@dataclass(frozen=True)
class ClientIdentity:
    """Identity of a client process, its servers and its folder, as plain values."""

    name: str
    session: int
    transport: Transport
    addresses: Mapping[str, str]
    shards: Sequence[Sequence[Any]]
    """Fields of each shard of all servers."""
    folder: str

    def client(self, kind: str = "gradient") -> Client:
        """Connect to the servers; the token is in the environment."""
        token = token_of(os.environ)
        assert token is not None, "the parent process sets it"
        shards = [Shard(*one) for one in self.shards]
        return Client(
            endpoint_on(self.transport, token, self.name), self.session, self.addresses, shards, kind
        )

    def await_others(self) -> None:
        """Report that this process is ready, and wait until all are."""
        (Path(self.folder) / f"{self.name}.ready").touch()
        while not (Path(self.folder) / "begin").exists():
            time.sleep(_WAIT_SECONDS)

    def write_report(self, said: Mapping[str, object]) -> None:
        """Write this process's report."""
        beside = Path(self.folder) / f"{self.name}.part"
        beside.write_text(json.dumps(said))
        beside.rename(Path(self.folder) / f"{self.name}.json")


def call_of(
    served: UnreplicatedServers,
    number: int,
    function: str,
    folder: Path,
    more: Mapping[str, object] | None = None,
) -> Call:
    """The call of a client process: ``function`` with its `ClientIdentity` and ``more``."""
    shards = [astuple(one) for one in served.shards]
    peer = ClientIdentity(
        name_of(number), number + 1, served.transport, served.addresses, shards, str(folder)
    )
    arguments = {"peer": asdict(peer), **(more or {})}
    return Call(peer.name, function, arguments, environ_of(served.transport, served.token))


def run_processes(
    processes: ForkServer, calls: Sequence[Call], folder: Path, seconds: float
) -> list[dict[str, Any]]:
    """Start processes, give the start signal when all are ready, and return their reports.

    Raises MachineError if a process exits without a report, or takes too much longer than ``seconds``.
    """
    started: list[Process] = []
    try:
        for call in calls:
            started.append(processes.start(call))
        _await(lambda: len(list(folder.glob("*.ready"))) == len(calls), started, _LATEST_SECONDS)
        (folder / "begin").touch()
        _await(lambda: len(list(folder.glob("*.json"))) == len(calls), started, seconds + _LATEST_SECONDS)
        return [json.loads((folder / f"{call.name}.json").read_text()) for call in calls]
    finally:
        for one in started:
            one.end()


def step(*, peer: Mapping[str, Any], compute_seconds: float, seconds: float) -> int:
    """Run a replica that computes nothing for ``seconds``: it sleeps for the time of a step, pushes and
    pulls. As in Downpour, the next step overlaps with the messages."""
    keep_freed_memory()
    me = ClientIdentity(**peer)
    client = me.client()
    place = np.zeros(max(one[3] for one in me.shards), np.float32)
    gradient = np.full_like(place, 1e-3)
    starts = {one[0]: (one[2], one[3]) for one in me.shards}
    me.await_others()
    begun, cpu, waits = time.perf_counter(), time.process_time(), list[float]()
    due = begun + compute_seconds * (1 + me.session % 8 / 8)  # staggered
    first, now = due - compute_seconds, begun
    while due < begun + seconds:
        time.sleep(max(0.0, due - time.perf_counter()))
        sent = time.perf_counter()
        client.push(gradient)
        for pulled in client.pull():
            for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
                assert isinstance(buffer, bytes | bytearray | memoryview)
                start, stop = starts[number]
                place[start:stop] = np.frombuffer(buffer, place.dtype)
        now = time.perf_counter()
        waits.append(now - sent)
        due = max(due + compute_seconds, now)
    if len(waits) < 2:
        waits = [*waits, *[fmean(waits or [0.0])] * 2]
    tenths = quantiles(waits, n=10)
    took = max(now - first, 1e-9)  # from the start of the first step
    me.write_report(
        asdict(ProcessReport(len(waits), took, time.process_time() - cpu, (tenths[4], tenths[8])))
    )
    client.close()
    return 0


def _await(holds: Any, started: Sequence[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        failed = [one for one in started if one.code() not in (None, 0)]
        if failed:
            raise MachineError(f"{failed[0].name} {failed[0].why()} while it was measured")
        if time.monotonic() > deadline:
            raise MachineError(f"processes that are measured have not ended within {seconds:g} s")
        time.sleep(_WAIT_SECONDS)
