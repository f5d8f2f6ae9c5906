"""Transactions that the metadata store rejects are refused, reported and forgotten; the sender continues."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

from cotswold.replication.controller.leader_election import Read, StateRequest, Transact
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.runtime.controller_process import MetadataThread, StoreResult
from lib.fuzz.controller import ControllerTarget


def answer_of(state: MetadataThread, wish: StateRequest) -> StoreResult:
    """Return the result of a request."""
    found: list[StoreResult] = []
    state.submit(wish, lambda _, answer: found.append(answer))
    while not found:
        assert select.select([state], [], [], 30.0)[0], "it does not answer"
        state.run_callbacks()
    return found[0]


def test_a_transaction_that_no_state_takes_is_refused_and_the_next_is_done(tmp_path: Path) -> None:
    with MetadataThread(MetadataLocation(str(tmp_path / "state.sqlite"))) as state:
        for key, value in (("k" * 600, "1"), ("k", "\u20ac" * 30_000)):
            assert isinstance(answer_of(state, Transact((), ((key, value),))), ValueError)
        assert answer_of(state, Transact((), (("k", "1"),))) is True
        assert answer_of(state, Read("k")) == {"k": "1"}


def test_a_controller_says_what_was_refused_and_forgets_it() -> None:
    victim = ControllerTarget()
    role: Any = victim._role
    victim._machine._state.view.map.drain("server-a-0", 1.0)
    wish = victim._machine._state.view.map.transaction(victim._machine.election.key)
    victim._machine._request = wish
    told = victim._post.sent["EventReport"]
    role._on_result(wish, ValueError("a key is too long"))
    assert victim._post.sent["EventReport"] == told + 1
    assert not victim._machine._state.view.map.has_transaction, "or it waits for its answer for ever"
