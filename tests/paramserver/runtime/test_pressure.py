"""A real server under pressure: long queues, floods, readers that do not read; only newer shards are sent."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from cotswold import wire as m
from cotswold.bench.server.client import Client
from cotswold.bench.server.unreplicated_servers import RUN, Model, UnreplicatedServers, endpoint_on
from cotswold.host import ForkServer
from cotswold.paramserver.core.staleness import Staleness
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.wire.messenger import Received

SHARD = 1 << 20
MB = 1 << 20
NAMES = ["replica-0", "replica-1"]


def model_of(megabytes: int, **more: object) -> Model:
    return Model((("weight", 256 * megabytes, 1024),), SHARD, **more)  # type: ignore[arg-type]  # fields


def client_of(served: UnreplicatedServers, number: int) -> Client:
    endpoint = endpoint_on(served.transport, served.token, NAMES[number])
    return Client(endpoint, number + 1, served.addresses, served.shards)


def resident_bytes(pid: int) -> int:
    """Return the bytes of a process's own and shared memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def update(number: int, session: int, shards: tuple[int, ...], gradient: Array) -> m.Update:
    buffers = tuple(raw(gradient) for _ in shards)
    versions = (0,) * len(shards)
    return m.Update(RUN, session, number, "gradient", shards, versions, 0, 1.0, (), 0, (), buffers)


@pytest.fixture(params=["Unix socket", "shared memory"])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gradient() -> Array:
    return np.full(SHARD // 4, 1e-3, np.float32)


def test_a_pull_does_not_wait_for_updates_that_wait(fork_server: ForkServer, gradient: Array) -> None:
    model = model_of(2, staleness=Staleness("wait", 0))
    with UnreplicatedServers(fork_server, model, NAMES, "shared memory") as served:
        one, other = client_of(served, 0), client_of(served, 1)
        # what the other has pulled for its push would be too stale, so the first one's update waits
        other.post.send("server-0", m.PullNewer(RUN, 2, 1, (0, 1), (-1, -1)))
        assert isinstance(other.post.receive(10), Received)
        one.post.send("server-0", update(1, 1, (0, 1), gradient))
        time.sleep(0.2)
        began = time.monotonic()
        (pulled,) = one.pull(whole=True)
        assert time.monotonic() - began < 1.0 and pulled.versions == (0, 0)
        (counts,) = served.counts()
        assert counts.waiting == 2 * SHARD and counts.updates == 0
        one.close()
        other.close()


def test_a_flood_of_updates_takes_a_bounded_part_of_a_servers_memory(
    fork_server: ForkServer,
    network: str,
    gradient: Array,
) -> None:
    model = model_of(4, queue_bytes=8 * MB)
    with UnreplicatedServers(fork_server, model, NAMES, network) as served:  # type: ignore[arg-type]  # one of them
        (pid,) = served.pids()
        client = client_of(served, 0)
        client.push(np.zeros(model.size, np.float32))
        before, most = resident_bytes(pid), 0
        for number in range(2, 150):  # 600 MB, and no answer is waited for
            while client.post.endpoint.unread_bytes("server-0") > 64 * MB:
                client.post.receive(0.01)
            client.post.send("server-0", update(number, 1, (0, 1, 2, 3), gradient))
            most = max(most, resident_bytes(pid))
        (counts,) = served.counts()
        assert counts.waiting <= 8 * MB
        assert max(most, resident_bytes(pid)) - before < 200 * MB
        client.close()


def test_who_does_not_read_what_it_pulls_makes_no_servers_memory_grow(
    fork_server: ForkServer, network: str
) -> None:
    model = model_of(8)
    with UnreplicatedServers(fork_server, model, NAMES, network) as served:  # type: ignore[arg-type]  # one of them
        (pid,) = served.pids()
        client = client_of(served, 0)
        client.pull(whole=True)
        before = resident_bytes(pid)
        numbers = tuple(one.number for one in served.shards)
        kept = []
        for _ in range(60):  # 480 MB
            client.post.send("server-0", m.PullNewer(RUN, 1, 0, numbers, (-1,) * len(numbers)))
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            if network == "shared memory":  # heard of, and not let go of
                kept.append(client.post.receive(0.05))
            else:
                time.sleep(0.05)
            assert resident_bytes(pid) - before < 240 * MB
        served.counts()  # it goes on
        kept.clear()
        while client.post.receive(0.2) is not None:
            pass
        (pulled,) = client.pull(whole=True)
        assert len(pulled.shards) == 8
        client.close()


def test_only_shards_that_changed_travel(fork_server: ForkServer, network: str) -> None:
    model = model_of(8)
    with UnreplicatedServers(fork_server, model, NAMES, network) as served:  # type: ignore[arg-type]  # one of them
        client, other = client_of(served, 0), client_of(served, 1)
        client.pull()
        came = client.received_bytes
        (pulled,) = client.pull()
        assert pulled.shards == () and client.received_bytes - came < 1000
        other.push_form([3], [0], {}, np.ones(SHARD // 4, np.float32))
        came = client.received_bytes
        (pulled,) = client.pull()
        assert pulled.shards == (3,) and pulled.versions == (1,)
        assert SHARD <= client.received_bytes - came < SHARD + 1000
        client.close()
        other.close()
