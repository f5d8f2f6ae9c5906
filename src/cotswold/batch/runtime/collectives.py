"""Reductions and broadcasts among workers, one at a time.

Knows: plans, lost members. Does not know: the contents and purpose of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotswold.batch.runtime.reduction import Reducer
from cotswold.batch.runtime.reduction_planner import reduction_of
from cotswold.errors import CotswoldError
from cotswold.shards.runtime.arithmetic import Array
from cotswold.transport import Endpoint, Lost, Message
from cotswold.wire import ReductionSchedule

HELD_SECONDS = 0.002
"""Seconds between two attempts to send to a peer with a full queue."""
_ATTEMPTS = 1 << 20


@dataclass(frozen=True)
class _Running:
    on_done: Callable[[Array], None]
    on_disconnect: Callable[[str], None]


def broadcast_number(evaluation: int, place: int) -> int:
    """Return the number of an evaluation's broadcast, equal on all members."""
    return evaluation * _ATTEMPTS + place


def reduction_number(evaluation: int, attempt: int) -> int:
    """Return the number of an evaluation's reduction, above those of its broadcasts."""
    return evaluation * _ATTEMPTS + _ATTEMPTS // 2 + attempt


class WorkerCollectives:
    """Collectives of one worker."""

    def __init__(self, endpoint: Endpoint, own_name: str) -> None:
        self._name = own_name
        self._endpoint, self._reducer = endpoint, Reducer([endpoint])
        self._present: _Running | None = None

    @property
    def has_unsent(self) -> bool:
        """True while data wait for a peer with a full queue."""
        current = self._reducer.current
        return current is not None and current.has_unsent

    def begin(
        self,
        number: int,
        plan: ReductionSchedule,
        vector: Array,
        *,
        is_broadcast: bool,
        on_done: Callable[[Array], None],
        on_disconnect: Callable[[str], None],
    ) -> None:
        """Start a plan with ``vector``, which is not modified; abandon any other plan.

        ``on_done`` receives the result, which is valid on the first member (for a broadcast: on all).
        ``on_disconnect`` receives the name of a lost member, or an empty string.
        """
        steps = reduction_of(plan, vector.size)
        self._present = _Running(on_done, on_disconnect)
        rank = plan.members.index(self._name)
        if is_broadcast:
            steps = steps.mirrored()
        self._carefully(lambda: self._reducer.begin(number, steps, plan.members, rank, vector))

    def receive(self, message: Message) -> None:
        """Handle a received piece."""
        self._carefully(lambda: self._reducer.receive(message))

    def proceed(self) -> None:
        """Send held-back data."""
        current = self._reducer.current
        if current is not None:
            self._carefully(current.proceed)

    def on_lost(self, event: Lost) -> None:
        """Handle the loss of a peer."""
        current = self._reducer.current
        if current is not None and not current.is_done and event.peer in current.partners:
            self._break(event.peer)

    def abandon(self) -> None:
        """Abandon the current plan."""
        self._reducer.abandon()
        self._present = None

    def _carefully(self, act: Callable[[], object]) -> None:
        try:
            act()
        except CotswoldError:  # a member is lost or follows another plan: the coordinator makes a new plan
            current = self._reducer.current
            partners = () if current is None else current.partners
            self._break(next((one for one in sorted(partners) if one not in self._endpoint.peers), ""))
            return
        current, present = self._reducer.current, self._present
        if current is not None and present is not None and current.is_done:
            result = current.result
            self.abandon()
            present.on_done(result)

    def _break(self, peer: str) -> None:
        present = self._present
        self.abandon()
        if present is not None:
            present.on_disconnect(peer)
