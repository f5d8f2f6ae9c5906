"""Planted mistakes about replicas, to check that the judges find them.

Knows: one possible mistake of a replica's state machine. Does not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.chaos.fault_injection import Fault

from cotswold.paramserver.core.replica import Replica
from cotswold.wire import PulledNewer, Send

_Any = Any
"""Stands for number types: patched machines accept any."""


def _whatever_comes(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def pulled(self: Replica, session: _Any, pulled: PulledNewer) -> None:
        asked = session.pulling.get(pulled.server)
        if asked is not None and pulled.error is None:
            session.versions.update(dict.fromkeys(pulled.shards, -1))
            session.pulling[pulled.server] = replace(asked, number=pulled.number)
        right(self, session, pulled)

    return pulled


def _never_again(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def pull_if_due(self: Replica, session: _Any, now: float) -> list[Send]:
        return []

    return pull_if_due


REPLICA_FAULTS: Mapping[str, Fault] = {
    "any-answer": Fault("a replica takes any answer, however late", Replica, "_on_pulled", _whatever_comes),
    "pulls-once": Fault("a replica pulls at its beginning alone", Replica, "_pull_if_due", _never_again),
}
"""Faults by name."""
