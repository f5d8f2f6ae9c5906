"""Startup of a cluster, with exits at any time."""

from __future__ import annotations

from typing import Any

from cotswold.batch.runtime.startup import Startup, WorkDescription
from cotswold.host import Token
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.wire.lifecycle import Parameters, WorkerReady
from cotswold.wire.messenger import Received

MADE = WorkerReady("worker-2", "float32", 1, 10, (1, 2), 0, (("w", 1, 1),))


def test_parameters_of_a_worker_that_has_ended_meanwhile_are_asked_of_another() -> None:
    nothing: Any = None
    opening = Startup(
        ClusterSettings(),
        WorkDescription("a:b", {}, None, None),
        nothing,
        Token.new(),
        nothing,
        lambda kind, more: None,
    )
    opening._on_message(Received("worker-2", MADE))
    opening._on_message(Received("worker-1", Parameters((b"\0\0\0\0",))))  # its end was heard before
    given = [opening._parameters]
    opening._on_message(Received("worker-2", Parameters((b"\0\0\0\0",))))
    given.append(opening._parameters)
    assert [None if each is None else each.tolist() for each in given] == [None, [0.0]]
