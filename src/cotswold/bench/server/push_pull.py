"""Pushes to and pulls from a server process, compared with raw ZeroMQ frames, or with a copy in memory.

Knows: transports, shards of several lengths, the bars. Does not know: how messages travel, the server's
work.

A push is over when the server has applied it, a pull when the numbers have arrived, before they are copied
into the parameters. The reference is frames of the same lengths between two processes over the same kind of
socket, with the same encryption; for shared memory it is NumPy's copy of the same bytes. The bar of a push
refers to its messages only: the processor time in which the server reads, checks and applies the numbers is
subtracted, as it has its own bar (group `apply`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.measure import interleaved, ratios, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, timed
from cotswold.bench.server.client import Client
from cotswold.bench.server.raw import RawPeer
from cotswold.bench.server.unreplicated_servers import (
    Model,
    Transport,
    UnreplicatedServers,
    endpoint_on,
    forked,
)
from cotswold.host import Token
from cotswold.shards.runtime.arithmetic import Array, raw

SOCKET_BAR, MEMORY_BAR = 0.8, 0.5
COLUMNS = 1024
FLOAT_BYTES = 4
REPLICA = "replica-0"
RAW, COPY = "raw ZeroMQ", "memcpy"
MESSAGES, COPY_LABELS = "without the arithmetic", "with the copy into place"


@dataclass(frozen=True)
class TransportCase:
    """A transport, and a vector of ``vector_bytes`` in shards of ``shard_bytes``."""

    verb: str
    """``push`` or ``pull``."""
    transport: Transport
    shard_bytes: int
    vector_bytes: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.transport}, shards of {_length(self.shard_bytes)}"

    @property
    def model(self) -> Model:
        """One tensor, in equal shards."""
        columns = min(COLUMNS, self.shard_bytes // FLOAT_BYTES)
        rows = self.vector_bytes // FLOAT_BYTES // columns
        return Model((("weight", rows, columns),), self.shard_bytes)


def measured(what: TransportCase, effort: Effort) -> list[Row]:
    """One row: a push or a pull, and its references."""
    memory = what.transport == "shared memory"
    with ExitStack() as held:
        processes = forked()
        served = held.enter_context(UnreplicatedServers(processes, what.model, [REPLICA], what.transport))
        client = Client(
            endpoint_on(what.transport, served.token, REPLICA), 1, served.addresses, served.shards
        )
        held.callback(client.close)
        peer = held.enter_context(
            RawPeer(
                processes, Token.new(), tcp=what.transport.startswith("TCP"), curve="CURVE" in what.transport
            )
        )
        vector, place = (np.zeros(what.model.size, np.float32) for _ in range(2))
        frames = [raw(vector[one.start : one.stop]) for one in served.shards]
        actions: dict[str, Action] = {COPY: lambda: np.copyto(place, vector)}
        if what.verb == "push":
            actions |= {COTSWOLD: lambda: client.push(vector), RAW: lambda: peer.push(frames)}
        else:
            actions |= {
                COTSWOLD: lambda: client.pull(whole=True),
                COPY_LABELS: lambda: install(client, served, place),
                RAW: lambda: peer.pull(len(frames), what.shard_bytes),
            }
        for _ in range(2):  # compiles kernels and connects
            client.push(vector)
        before = served.counts()[0]
        samples = dict(interleaved(actions, effort.rounds))
        after = served.counts()[0]
        client.pull()
        came = client.received_bytes
        client.push_form([served.shards[0].number], [0], {}, vector)
        client.pull()
        newer = client.received_bytes - came
    pushes = (after.updates - before.updates) / len(frames)
    facts: dict[str, object] = {"received_bytes_where_one_shard_is_newer": newer}
    if what.verb == "push":
        applying = (after.applying_seconds - before.applying_seconds) / pushes
        samples[MESSAGES] = [max(one - applying, one / 20) for one in samples[COTSWOLD]]
        facts = {
            "applying_seconds": rounded(applying),
            "server_cpu_seconds": rounded((after.cpu_seconds - before.cpu_seconds) / pushes),
        }
    against, bar = (COPY, MEMORY_BAR) if memory else (RAW, SOCKET_BAR)
    judged = samples[MESSAGES if what.verb == "push" else COTSWOLD]
    verdicts = [Comparison(against, ratios(samples[against], judged), bar)]
    key = RowKey(what.verb, what.name, f"{len(frames)} shards" if len(frames) > 1 else "1 shard")
    row = timed(key, what.vector_bytes, samples, verdicts, "GB/s")
    return [replace(row, facts={**row.facts, **facts})]


def install(client: Client, served: UnreplicatedServers, place: Array) -> None:
    """Pull all, and copy it into place, as a replica does before a step."""
    starts = {one.number: one for one in served.shards}
    for pulled in client.pull(whole=True):
        for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
            assert isinstance(buffer, bytes | bytearray | memoryview)
            shard = starts[number]
            place[shard.start : shard.stop] = np.frombuffer(buffer, place.dtype)


def exchanges(
    shards: Sequence[int], vector_bytes: int, transports: Sequence[Transport]
) -> list[TransportCase]:
    """Every transport with every length of shard."""
    return [
        TransportCase(verb, transport, shard, vector_bytes)
        for verb in ("push", "pull")
        for transport in transports
        for shard in shards
    ]


def _length(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"
