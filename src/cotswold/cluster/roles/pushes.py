"""Sums on their way to the parameter servers.

Knows: which servers have not acknowledged which sum. Does not know: what a sum is of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotswold.cluster.arithmetic import Array, raw
from cotswold.cluster.roles.pulls import Tell
from cotswold.server.messages import Kept, Node, PortionResult, Push, Pushed, Refused, Shard


@dataclass
class _Pushing:
    message: Pushed
    node: Node | None
    gradient: Array | None
    missing: set[str]
    """Servers that have not acknowledged it."""
    sent: float


class Pushes:
    """Sums that are pushed until they are settled, by number."""

    def __init__(
        self, shards: Sequence[Shard], tell: Tell, tell_coordinator: Callable[[Pushed], object]
    ) -> None:
        self._by_server: dict[str, list[Shard]] = {}
        for one in shards:
            self._by_server.setdefault(one.server, []).append(one)
        self._tell, self._tell_coordinator = tell, tell_coordinator
        self._pushing: dict[int, _Pushing] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._pushing

    def push(
        self,
        *,
        session: int,
        evaluation: int,
        number: int,
        node: Node | None,
        gradient: Array | None,
        results: Sequence[PortionResult],
        attempt: int,
        now: float,
    ) -> None:
        """Send a sum to all servers; a value alone needs none of them."""
        done = Pushed(session, evaluation, number, tuple(results), attempt)
        missing = set(self._by_server) if gradient is not None else set()
        self._pushing[number] = _Pushing(done, node, gradient, missing, now)
        for server in missing:
            self._send(server, self._pushing[number])
        if not missing:
            self._tell_coordinator(done)

    def kept(self, message: Kept) -> None:
        """A server has it; once all have, the coordinator is told."""
        found = self._pushing.get(message.number)
        if found is None or not self._is_of(found, message) or message.server not in found.missing:
            return
        found.missing.discard(message.server)
        if not found.missing:
            self._tell_coordinator(found.message)

    def refused(self, message: Refused) -> None:
        """A server will not have it: nobody counts it."""
        found = self._pushing.get(message.number)
        if found is not None and self._is_of(found, message):
            del self._pushing[message.number]

    def send_again(self, now: float, after_seconds: float) -> None:
        """Send what has not been acknowledged, or not settled, for so long."""
        for one in self._pushing.values():
            if now - one.sent >= after_seconds:
                one.sent = now
                for server in one.missing:
                    self._send(server, one)
                if not one.missing:
                    self._tell_coordinator(one.message)

    def settle(self, number: int) -> None:
        """A sum is needed no more."""
        self._pushing.pop(number, None)

    def clear(self) -> None:
        """Nothing is."""
        self._pushing.clear()

    def _send(self, server: str, one: _Pushing) -> None:
        assert one.gradient is not None
        shards = self._by_server[server]
        message = one.message
        self._tell(
            server,
            Push(
                message.session,
                message.evaluation,
                message.number,
                one.node,
                tuple(result.portion for result in message.results),
                tuple(each.number for each in shards),
                tuple(raw(one.gradient[each.start : each.stop]) for each in shards),
            ),
        )

    @staticmethod
    def _is_of(found: _Pushing, message: Kept | Refused) -> bool:
        return (found.message.session, found.message.evaluation) == (message.session, message.evaluation)
