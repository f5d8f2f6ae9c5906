"""Models larger than the queue of an endpoint, and models too large for a message."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.replicas.opened_replicas import Opener
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.errors import UserError
from cotswold.paramserver.core.replica_session import Pace
from cotswold.replicas.replicas import open_replicas
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.transport import Endpoint


def test_a_replica_that_just_trains_is_not_dropped_though_not_three_vectors_may_wait_for_it() -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    processes = ReplicatedClusterSettings(workers=1, servers=1, shard_bytes=1 << 18)
    settings = ReplicaSettings(processes, Pace(2048), 1.0)
    with open_replicas(
        settings,
        "tests.support.transport.tight_limits:tally",
        {"seconds": 0.005},
        on_event=lambda kind, more: events.append((kind, more)),
    ) as replicas:
        replicas.proceed(30.0)
        assert replicas.is_over, replicas.status()
        assert replicas.ledger.total.lost == 0
        assert (replicas.read() == 1).all()
    assert not [each for each in events if each[0] in ("lost", "exited", "left")], events


def test_parameters_of_which_a_server_would_have_too_many_for_a_message_are_refused(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Endpoint.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "message_bytes", 4 * 32)
    with pytest.raises(UserError, match=r"192 bytes.* at most 128 .*cluster\.servers"):
        opened(servers=1)
