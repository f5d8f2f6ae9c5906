"""Failover time: how long clients wait when a bucket's primary is killed or stopped, until a push counts
again.

Knows: kills, stops, the bars. Does not know: elections, how clients find the new primary.

A client pushes to all buckets, one push after the other. The measured time is from the signal to the first
push that all buckets have acknowledged, those of the lost server by their new primaries. The parent process
reports the exit of a process to the controller, as in a run. Then another server is started, and receives
copies.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.bench.server.client import Client
from cotswold.bench.server.copies import TRANSPORT
from cotswold.bench.server.push_pull import REPLICA
from cotswold.bench.server.replicated_servers import LEASE_SECONDS, ReplicatedServers
from cotswold.bench.server.site import SingleHost
from cotswold.bench.server.unreplicated_servers import Model, forked
from cotswold.errors import MachineError

KILLED, STOPPED = "killed", "stopped"
BARS = {KILLED: 1.0, STOPPED: 2 * LEASE_SECONDS}
BAR = "the bar"
"""Bar for the median of kills, and for the longest of stops."""
_SERVERS, _COPIES = 4, 3
_WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Failover:
    """A vector in buckets on four servers, three copies of each, and the fault of primaries."""

    fault: str
    model: Model
    times: int = 9
    buckets: int = 64

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"a primary is {self.fault}"


@dataclass
class _PushThread:
    """A client that pushes in its own thread until stopped."""

    client: Client
    vector: np.ndarray
    acknowledged: list[float] = field(default_factory=list)
    """Time of each push's acknowledgement."""
    error: BaseException | None = None
    is_stopped: bool = False

    def run(self) -> None:
        try:
            while not self.is_stopped:
                self.client.push(self.vector)
                self.acknowledged.append(time.monotonic())
        except BaseException as error:
            self.error = error

    def first_acknowledged_after(self, moment: float) -> float:
        """Time at which the first push sent after a moment was acknowledged."""
        done = len(self.acknowledged)
        self.wait(lambda: len(self.acknowledged) >= done + 2)  # the first may have been sent before
        return self.acknowledged[done + 1]

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not holds():
            if self.error is not None:
                raise self.error
            if time.monotonic() > deadline:
                raise MachineError(f"no push was acknowledged for {_WAIT_SECONDS:g} s")
            time.sleep(0.001)


def measured(what: Failover, _: Effort) -> list[Row]:
    """One row of seconds, over several faults."""
    vector = np.full(what.model.size, 1e-3, np.float32)
    with ExitStack() as held:
        site = SingleHost(TRANSPORT)
        kept = held.enter_context(
            ReplicatedServers(
                forked(),
                what.model,
                [REPLICA],
                site,
                servers=_SERVERS,
                copies=_COPIES,
                buckets=what.buckets,
            )
        )
        addresses = dict.fromkeys(kept.buckets, "")
        client = Client(site.endpoint(REPLICA), 1, addresses, kept.shards, controllers=kept.controllers)
        held.callback(client.close)
        pushing = _PushThread(client, vector)
        thread = threading.Thread(target=pushing.run)
        thread.start()
        try:
            pushing.wait(lambda: len(pushing.acknowledged) > 2)
            samples = [_measure_failover(what.fault, kept, pushing) for _ in range(what.times)]
        finally:
            pushing.is_stopped = True
            thread.join()
    key = RowKey("failover", what.name, f"{_COPIES} copies on {_SERVERS} servers")
    spread = Spread.from_samples(samples)
    bar = BARS[what.fault]
    judged = samples if what.fault == KILLED else [max(samples)]
    verdict = Comparison(BAR, Spread.from_samples([each / bar for each in judged]), 1.0, "at most")
    facts: dict[str, object] = {"buckets": what.buckets, "bar_seconds": bar, "lease_seconds": LEASE_SECONDS}
    return [Row(key, "s", {COTSWOLD: spread}, {COTSWOLD: samples}, "seconds", [verdict], facts=facts)]


def _measure_failover(how: str, kept: ReplicatedServers, pushing: _PushThread) -> float:
    """Seconds until pushes count again, after waiting for full replication."""
    kept.wait_until_replicated()
    victim = kept.names[0]
    began = time.monotonic()
    kept.send(victim, signal.SIGKILL if how == KILLED else signal.SIGSTOP)
    if how == KILLED:
        kept.report_exit(victim)
    seconds = pushing.first_acknowledged_after(began) - began
    if how == STOPPED:
        kept.send(victim, signal.SIGKILL)
        kept.report_exit(victim)
    kept.start_server()
    return rounded(seconds)
