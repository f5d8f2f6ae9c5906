"""Servers without memory, hanging, or receiving invalid messages while replicas learn.

Each trouble is named, no process hangs, and the result is unaffected.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import cotswold
from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.host import ForkServer, Token
from cotswold.paramserver.core.replica_session import Pace
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.replicas.replicas import open_replicas
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.transport import Endpoint
from cotswold.wire.codec import encode

SECONDS = 10.0


@pytest.mark.slow
def test_a_server_without_memory_is_named_and_nobody_hangs(tmp_path: Path) -> None:
    big = nn.Linear(2000, 2000, bias=False)
    found = cotswold.serve(big, save=tmp_path / "saved")
    (pid,) = found.processes.values()
    began = time.monotonic()
    with cotswold.connect(found.address, found.token) as s:
        s.pull(big)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + 8_000_000  # and a push has 16
        resource.prlimit(pid, resource.RLIMIT_AS, (most, most))
        big.weight.grad = torch.ones_like(big.weight)
        with pytest.raises(MachineError, match=r"server-0 is lost .* no memory is left to read"):
            s.push(big)
    with pytest.raises(MachineError, match="server-0 is lost"):
        found.wait(SECONDS)
    assert time.monotonic() - began < SECONDS


@pytest.mark.slow
def test_replicas_that_learn_are_not_disturbed_either(fork_server: ForkServer) -> None:
    token = Token.new()
    chosen = ReplicaSettings(
        ReplicatedClusterSettings(workers=2, servers=2, shard_bytes=64, seed=3),
        Pace(10),
        0.02,
        epochs=4,
        fraction=1.0,
    )
    work = {"samples": 1000, "size": 48, "seconds": 0.002}
    with open_replicas(
        chosen, "tests.support.replicas.works:regression", work, processes=fork_server, token=token
    ) as replicas:
        machine = replicas._machine
        while not replicas.ledger.total.counted:
            replicas.proceed(0.05)
        with Endpoint(token, "mallory") as endpoint:
            for name, address in machine.servers:
                endpoint.connect(name, address)
            session = next(iter(machine.members)).session
            shards = tuple(one.number for one in machine.shards if one.server == "server-0")
            wrong = m.Update(machine.rules.run, session, 1, "gradient", shards, (), 1, 1.0, (), 0, (), ())
            for message in (wrong, replace(wrong, run="older"), m.CoordinatorState(9, (), (), 0, 0)):
                header, buffers = encode(message)
                endpoint.send("server-0", header, buffers)
            endpoint.send("server-0", {"message": ["Update", "cut short"]})
            endpoint.send("server-1", {"nonsense": b"\x80\x04."})
            endpoint.flush(SECONDS)
            replicas.proceed(30.0)
        learnt, total = replicas.read(), replicas.ledger.total
        counts = {name: count for each in replicas.count() for name, count in each.refused}
        assert replicas.is_over and (total.counted, total.torn, total.lost) == (4000, 0, 0)
        assert counts == {"session": 1, "run": 1, "unknown Update": 1, "malformed": 1}
        assert (learnt - torch.linspace(-1, 1, 48)).abs().max() < 0.05


@pytest.mark.slow
def test_a_replicas_server_that_stands_still_is_named(fork_server: ForkServer) -> None:
    chosen = ReplicaSettings(
        ReplicatedClusterSettings(workers=1, servers=2, shard_bytes=64, silent_seconds=1.0),
        Pace(10),
        0.02,
        epochs=900,
    )
    work = {"samples": 1000, "size": 48, "seconds": 0.002}
    with open_replicas(
        chosen, "tests.support.replicas.works:regression", work, processes=fork_server
    ) as replicas:
        replicas.proceed(0.1)
        os.kill(replicas.servers["server-1"], signal.SIGSTOP)
        with pytest.raises(ClusterFailedError, match="server-1 has not answered for 1 s"):
            replicas.proceed(SECONDS)
