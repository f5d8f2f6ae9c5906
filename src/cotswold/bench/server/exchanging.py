"""Pushes to and pulls from a server's process, beside raw ZeroMQ frames, or beside a copy in memory.

Knows: roads, shards of several lengths, the bars. Does not know: how messages travel, what a server does.

A push is over when the server has applied it, a pull when the numbers are in the place of the parameters: as a
replica has it. Beside them stand frames of the same lengths between two processes over the same kind of
socket, with the same encryption, read into no place; for shared memory NumPy's copy of as many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.measure import interleaved, ratios
from cotswold.bench.row import OURS, Comparison, Row, RowKey, timed
from cotswold.bench.server.raw import RawPeer
from cotswold.bench.server.served import PRELOADED, Client, Model, Road, Served
from cotswold.cluster.arithmetic import Array, raw
from cotswold.host import ForkServer, Token

SOCKET_BAR, MEMORY_BAR = 0.8, 0.5
COLUMNS = 1024
FLOAT_BYTES = 4
REPLICA = "replica-0"
RAW, COPY = "raw ZeroMQ", "memcpy"


@dataclass(frozen=True)
class Exchange:
    """A road, and a vector of so many bytes in shards of so many."""

    verb: str
    """``push`` or ``pull``."""
    road: Road
    shard_bytes: int
    vector_bytes: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.road}, shards of {_length(self.shard_bytes)}"

    @property
    def model(self) -> Model:
        """One tensor, in equal shards."""
        columns = min(COLUMNS, self.shard_bytes // FLOAT_BYTES)
        rows = self.vector_bytes // FLOAT_BYTES // columns
        return Model((("weight", rows, columns),), self.shard_bytes)


def measured(what: Exchange, effort: Effort) -> list[Row]:
    """One row: a push or a pull, and what is beside it."""
    memory = what.road == "shared memory"
    with ExitStack() as held:
        processes = ForkServer(PRELOADED)
        held.callback(processes.close)
        served = held.enter_context(Served(processes, what.model, [REPLICA], what.road))
        client = Client(what.road, served.token, REPLICA, 1, served.addresses, served.shards)
        held.callback(client.close)
        peer = held.enter_context(
            RawPeer(processes, Token.new(), tcp=what.road.startswith("TCP"), curve="CURVE" in what.road)
        )
        vector, place = (np.zeros(what.model.size, np.float32) for _ in range(2))
        frames = [raw(vector[one.start : one.stop]) for one in served.shards]

        def pull() -> None:
            install(client, served, place)

        def raw_pull() -> None:
            peer.pull(len(frames), what.shard_bytes)

        ours, raws = (
            (lambda: client.push(vector), lambda: peer.push(frames))
            if what.verb == "push"
            else (pull, raw_pull)
        )
        actions = {OURS: ours, RAW: raws, COPY: lambda: np.copyto(place, vector)}
        samples = interleaved(actions, effort.rounds)
    against, bar = (COPY, MEMORY_BAR) if memory else (RAW, SOCKET_BAR)
    verdicts = [Comparison(against, ratios(samples[against], samples[OURS]), bar)]
    place_of = RowKey(what.verb, what.name, f"{len(frames)} shards" if len(frames) > 1 else "1 shard")
    return [timed(place_of, what.vector_bytes, samples, verdicts, "GB/s")]


def install(client: Client, served: Served, place: Array) -> None:
    """Pull all, and put it in its place, as a replica does before a step."""
    starts = {one.number: one for one in served.shards}
    for pulled in client.pull(whole=True):
        for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
            assert isinstance(buffer, bytes | bytearray | memoryview)
            shard = starts[number]
            place[shard.start : shard.stop] = np.frombuffer(buffer, place.dtype)


def exchanges(shards: Sequence[int], vector_bytes: int, roads: Sequence[Road]) -> list[Exchange]:
    """Every road with every length of shard."""
    return [
        Exchange(verb, road, shard, max(shard, vector_bytes))
        for verb in ("push", "pull")
        for road in roads
        for shard in shards
    ]


def _length(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"
