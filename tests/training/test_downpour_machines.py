"""Replicas and servers that Ray starts at an address: the same recipe, ports of a range."""

from __future__ import annotations

import select
import signal
import socket
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports
from tests.ray_token import RAY_TOKEN
from tests.support.training.runs import events
from tests.training.async_sgd.test_strategy import accounted, recipe_of
from tests.training.test_batch_cluster import listens

from cotswold.errors import UserError
from cotswold.processes.ray.node import start_head
from cotswold.run import Stop
from cotswold.testing import wait_until
from cotswold.training import open_job

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")

PORTS = range(23_000, 24_000)


def ports_that_listen() -> set[int]:
    """Return the listening TCP ports of this machine, as reported by Linux."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


@pytest.mark.soak
def test_replicas_learn_on_the_machines_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_TOKEN", RAY_TOKEN.text)
    shown: list[Mapping[str, Any]] = []
    listening: list[int] = []

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "replicas":
            shown.append(event)
            listening.append(len(ports_that_listen() & set(PORTS)))

    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,  # names of sockets are short
        free_ports(2) as (port, client_port),
    ):
        words = [f"--temp-dir={folder}", f"--ray-client-server-port={client_port}"]
        head = start_head(RAY_TOKEN, port=port, cores=2, words=words)
        try:
            wait_until(lambda: listens(port) or head.code() is not None, "Ray listens", 60)
            recipe = recipe_of(tmp_path, "workers = 2, servers = 2, spread_servers = true", shard_kilobytes=1)
            given = [f"cluster.ray_address=127.0.0.1:{port}", f"cluster.ports={PORTS[0]}-{PORTS[-1]}"]
            job = open_job(recipe, tmp_path / "run", overrides=given, stores=tmp_path / "stores")
            assert job.train(watch=watch, stop=Stop())
        finally:
            head.send(signal.SIGTERM)
            select.select([head], [], [], 20)
            head.end()
    assert accounted(job.run, 4)["counted"] > 0
    assert max(listening) >= 1 + 2 + 2, "coordinator, replicas and servers"
    (row, other) = shown[-1]["servers"]
    assert row["machine"] and row["machine"] == other["machine"]
    assert events(job.run, "validation")[-1]["accuracy"] != events(job.run, "validation")[0]["accuracy"]


def test_an_address_without_the_secret_of_its_machines_is_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTSWOLD_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = [f"cluster.ray_address=127.0.0.1:{listening.getsockname()[1]}"]
        with pytest.raises(UserError, match="set COTSWOLD_TOKEN to the token with which 'cotswold worker'"):
            open_job(recipe_of(tmp_path), tmp_path / "run", overrides=given, stores=tmp_path / "stores")
    assert not (tmp_path / "run").exists()
