"""Counters of servers, if servers miss some requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.replicas import replicated_coordinator as bucket_conversation
from cotswold.replicas.replicas import Replicas
from cotswold.replicas.replicated_coordinator import ReplicatedCoordinator
from cotswold.replicas.startup import StartedReplicas
from cotswold.wire import Send
from cotswold.wire.lifecycle import CountersRequest, ServerCounters
from cotswold.wire.messenger import AnyMessage


def counts_of(server: str) -> ServerCounters:
    return ServerCounters(server, 0, 0.0, 0, 0, (), 1, 0, (), ())


class Deaf(ReplicatedCoordinator):
    """Servers a and b, of which b misses the first request."""

    @property
    def servers(self) -> list[str]:
        return ["a", "b"]

    @property
    def counters_request(self) -> CountersRequest:
        return CountersRequest("run")

    @property
    def server_timeout(self) -> float:
        return 1.0

    def __init__(self) -> None:
        self.machine, self.outlived = cast(Any, None), True
        self.asked, self._answers = list[str](), list[ServerCounters]()
        self._handlers = list[Callable[[AnyMessage], None]]()

    def deliver(self, sends: Sequence[Send]) -> None:
        for each in sends:
            is_heard = each.to == "a" or each.to in self.asked
            self.asked.append(each.to)
            if is_heard:
                self._answers.append(counts_of(each.to))

    def step(self, timeout: float) -> None:
        assert len(self.asked) < 9
        for hear in self._handlers:
            for each in self._answers:
                hear(each)
        self._answers.clear()


def test_a_pause_waits_for_no_replica_once_the_training_is_over() -> None:
    machine = SimpleNamespace(
        state=DispatcherState.FINISHED, ledger=SimpleNamespace(open=0, divided=((0, 4),))
    )
    coordinator = SimpleNamespace(machine=machine, wait=lambda until: until() or pytest.fail("it waits"))
    Replicas(StartedReplicas(cast(Any, coordinator), cast(Any, None), ("x",), None)).pause()


def test_a_server_that_did_not_hear_the_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_conversation, "_RETRY_SECONDS", 0.0)
    deaf = Deaf()
    begun = cast(Any, SimpleNamespace())
    replicas = Replicas(StartedReplicas(deaf, begun, ("x",), None))
    assert [each.server for each in replicas.count()] == ["a", "b"]
    assert deaf.asked.count("b") > 1
