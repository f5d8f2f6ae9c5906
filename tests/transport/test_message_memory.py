"""Memory of messages may be borrowed: nothing keeps a message once it is answered."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import cast

import pytest
from tests.support.replicas.works import evaluation, least_squares

from cotswold.batch.runtime.worker_process import WorkerProcess
from cotswold.paramserver.runtime.server_process import serve
from cotswold.replicas.evaluator_process import EvaluatorProcess
from cotswold.shards.core.shard_server import ShardServer
from cotswold.shards.runtime.arithmetic import NumpyArithmetic
from cotswold.wire import Shard
from cotswold.wire.lifecycle import PeerAddresses
from cotswold.wire.messenger import Messenger, Received


class Over(Exception):  # noqa: N818  # no error
    """No more messages arrive."""


class Talk:
    """A `Messenger` with one message, and then none."""

    address = "nowhere"

    def __init__(self) -> None:
        self.endpoint = self
        self._message: Callable[[], object] | None = None
        self.is_kept = True

    def watch(self, descriptor: int) -> None:
        """Do what endpoints do."""

    def send(self, to: str, message: object) -> bool:
        return True

    def receive(self, timeout: float | None) -> Received:
        if self._message is not None:
            self.is_kept = self._message() is not None
            raise Over
        message = PeerAddresses(())
        self._message = weakref.ref(message)
        return Received("coordinator", message)


def served(messenger: Messenger) -> None:
    serve(
        ShardServer("server-0", [Shard(0, "server-0", 0, 4, "w", 0)], NumpyArithmetic("float32")), messenger
    )


@pytest.mark.parametrize(
    "life",
    [
        served,
        lambda messenger: WorkerProcess(least_squares(), messenger, "worker-1", 10.0).run(),
        lambda messenger: EvaluatorProcess(evaluation(), messenger, "evaluator-1", 10.0).run(),
    ],
    ids=["server", "worker", "evaluator"],
)
def test_a_message_is_let_go_before_the_next_is_awaited(life: Callable[[Messenger], None]) -> None:
    talk = Talk()
    with pytest.raises(Over):
        life(cast(Messenger, talk))
    assert not talk.is_kept
