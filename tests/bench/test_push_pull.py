"""Measurements of pushes, pulls and replicas on real servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.bench.small_cases import SMALLEST

from cotswold.bench.row import COTSWOLD
from cotswold.bench.server import push_pull, replicas
from cotswold.bench.server.client import Client
from cotswold.bench.server.plots import draw_replicas
from cotswold.bench.server.processes import REQUESTED_RATE
from cotswold.bench.server.push_pull import COPY, COPY_LABELS, MESSAGES, RAW, REPLICA, TransportCase, install
from cotswold.bench.server.replicas import ReplicaCounts
from cotswold.bench.server.unreplicated_servers import (
    TRANSPORTS,
    Model,
    Transport,
    UnreplicatedServers,
    endpoint_on,
    forked,
)
from cotswold.transport.address import Address

MODEL = Model((("weight", 64, 256), ("bias", 64, 1)), 1 << 13)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pulled_values_are_the_pushed_ones_on_any_transport(transport: Transport) -> None:
    with UnreplicatedServers(forked(), MODEL, [REPLICA], transport) as served:
        client = Client(endpoint_on(transport, served.token, REPLICA), 1, served.addresses, served.shards)
        client.push(np.arange(MODEL.size, dtype=np.float32))
        place = np.ones(MODEL.size, np.float32)
        install(client, served, place)
        assert place == pytest.approx(-1e-6 * np.arange(MODEL.size))
        traffic = client.post.endpoint.traffic
        assert (traffic.received_shared_bytes >= 4 * MODEL.size) == (transport == "shared memory")
        mode = Address.parsed(served.addresses["server-0"]).mode
        assert (mode == "curve") == (transport == "TCP, CURVE")
        client.close()


def test_a_push_has_a_bar_for_its_messages_and_a_pull_for_the_whole() -> None:
    (push,) = push_pull.measured(TransportCase("push", "Unix socket", 1 << 13, 1 << 15), SMALLEST)
    assert set(push.figures) == {COTSWOLD, MESSAGES, RAW, COPY}
    assert push.facts["applying_seconds"] > 0  # type: ignore[operator]  # a number
    (pull,) = push_pull.measured(TransportCase("pull", "shared memory", 1 << 13, 1 << 15), SMALLEST)
    assert set(pull.figures) == {COTSWOLD, COPY_LABELS, RAW, COPY}
    assert [(one.against, one.bar) for row in (push, pull) for one in row.verdicts] == [
        (RAW, 0.8),
        (COPY, 0.5),
    ]


def test_replicas_are_served_and_drawn(tmp_path: Path) -> None:
    one, two = replicas.measured(ReplicaCounts((1, 2), 0.3), SMALLEST)
    assert one.facts["parameters"] == 562_090  # of adam-mnist, with padded convolutions
    assert 0 < one.figures[COTSWOLD].median <= 1.5 * one.figures[REQUESTED_RATE].median
    assert two.figures[REQUESTED_RATE].median == pytest.approx(2 * one.figures[REQUESTED_RATE].median)
    rows = [{"threads": 1, **each.as_dict()} for each in (one, two)]
    assert draw_replicas({"rows": rows}, tmp_path / "replicas.svg")
    assert "asked for" in (tmp_path / "replicas.svg").read_text()
    assert not draw_replicas({"rows": []}, tmp_path / "nothing.svg")
