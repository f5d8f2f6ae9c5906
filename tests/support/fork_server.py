"""One fork server for all tests of clusters, which imports torch once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotswold.host import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer(
        (
            "torch",
            "cotswold.batch.runtime.worker_process",
            "cotswold.paramserver.runtime.server_process",
            "cotswold.replicas.replica_process",
            "tests.support.replicas.works",
        )
    )
    yield server
    server.close()
