"""Execution of a reduction plan over endpoints: sums and broadcasts of vectors, in pieces.

Knows: plans, messages with pieces of vectors, lost members. Does not know: portions, the coordinator's
decisions, the choice of plans.

The rank's own vector is not modified; the sum grows in another one. So a reduction that loses a member can be
abandoned and repeated with another plan. Messages are added in the order of the plan, independent of their
arrival: the same plan gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from cotswold.errors import ClusterError, RankError
from cotswold.geometry.reduction import Item, ReductionPlan
from cotswold.geometry.reduction_time import piece_elements
from cotswold.transport import Endpoint, Event, Lost, Message
from cotswold.transport.frames import REDUCTION_KEY

Vector: TypeAlias = "np.ndarray[Any, np.dtype[np.floating[Any]]]"

AHEAD_BYTES = 8 << 20
"""Maximum bytes queued at the connection to a peer."""
_HELD_SECONDS = 0.002
"""Seconds between two attempts to send to a peer with a full queue."""
EARLY_BYTES = 1 << 30
"""Maximum bytes kept from peers that started a reduction earlier."""


class Reduction:
    """One rank's part in a plan.

    ``names`` are the peers of all ranks; ``endpoints`` has one endpoint per lane. Both sides of each message
    must be connected on these before the start. Start the reduction and pass each of its messages to
    `receive` until `is_done`; serve the endpoints (`receive`, `flush`) until their data are sent. ``result``
    is the sum on the root (for a broadcast: the root's vector on every rank); on other ranks it is partial
    and of no use.
    """

    def __init__(
        self,
        number: int,
        plan: ReductionPlan,
        names: Sequence[str],
        rank: int,
        vector: Vector,
        endpoints: Sequence[Endpoint],
        piece_bytes: int | None = None,
    ) -> None:
        if vector.shape != (plan.count,) or not vector.flags.c_contiguous:
            raise ClusterError(
                f"the plan needs a flat vector of {plan.count} elements, got shape {vector.shape}"
            )
        if len(names) != plan.ranks or not 0 <= rank < plan.ranks or plan.lanes > len(endpoints):
            raise ClusterError(
                f"the plan needs {plan.ranks} names and {plan.lanes} endpoints (one per network), got "
                f"{len(names)} and {len(endpoints)}"
            )
        self.number, self.plan, self._names, self._endpoints = number, plan, names, endpoints
        self._vector = vector
        elements = piece_elements(plan.count, vector.itemsize)
        if piece_bytes is not None:
            elements = max(1, piece_bytes // vector.itemsize)
        self._pieces = plan.pieces(elements)
        self._agenda = plan.agenda(rank, self._pieces)
        receives = any(not item.sends for items in self._agenda for item in items)
        self.result: Vector = np.empty_like(vector) if receives else vector
        self._next = [0] * len(self._pieces)
        self._written = [False] * len(self._pieces)
        """True for pieces that are in the result instead of the own vector."""
        self._received: dict[tuple[int, int, int], memoryview] = {}
        """Received pieces that cannot be used yet, by (piece, stage, sender)."""
        self._unsent: set[int] = set()
        """Pieces whose next message waits for a peer with a full queue."""
        self._remaining = sum(map(len, self._agenda))
        self._ranks = {name: at for at, name in enumerate(names)}
        self.partners = frozenset(names[item.other] for items in self._agenda for item in items)
        """Peers with which this rank exchanges data."""

    @property
    def is_done(self) -> bool:
        """True if this rank has finished."""
        return self._remaining == 0

    @property
    def has_unsent(self) -> bool:
        """True while data wait for a peer with a full queue: call `proceed` after a moment."""
        return bool(self._unsent)

    def start(self) -> None:
        """Send everything that depends on no message."""
        for piece in range(len(self._pieces)):
            self._proceed(piece)
        self._finish()

    def receive(self, message: Message) -> None:
        """Handle a message of this reduction; raise ClusterError if it does not fit the plan."""
        piece, stage = message.header.get("piece"), message.header.get("stage")
        sender = self._ranks.get(_base(message.sender))
        if not isinstance(piece, int) or not isinstance(stage, int) or sender is None:
            raise self._misfit(message)
        if not 0 <= piece < len(self._pieces) or len(message.buffers) != 1:
            raise self._misfit(message)
        begin, end = self._pieces[piece]
        (values,) = message.buffers
        expected = any(
            not item.sends and (item.stage, item.other) == (stage, sender)
            for item in self._agenda[piece][self._next[piece] :]
        )
        if values.nbytes != (end - begin) * self._vector.itemsize or not expected:
            raise self._misfit(message)
        self._received[piece, stage, sender] = values
        self._proceed(piece)
        self._finish()

    def proceed(self) -> None:
        """Send held-back pieces if peers accept them; raise RankError if a peer is lost."""
        held, self._unsent = self._unsent, set()
        for piece in sorted(held):
            self._proceed(piece)
        self._finish()

    def _proceed(self, piece: int) -> None:
        """Execute the plan for a piece, up to a missing message or a full queue."""
        items = self._agenda[piece]
        begin, end = self._pieces[piece]
        while self._next[piece] < len(items):
            item = items[self._next[piece]]
            if item.sends:
                if not self._is_sent(piece, item):
                    self._unsent.add(piece)
                    return
            else:
                values = self._received.pop((piece, item.stage, item.other), None)
                if values is None:
                    return
                self._write(slice(begin, end), piece, values, adds=item.is_sum)
            self._next[piece] += 1
            self._remaining -= 1

    def _write(self, where: slice, piece: int, values: memoryview, *, adds: bool) -> None:
        """Add received values to this rank's, or replace them."""
        came = np.frombuffer(values, self._vector.dtype)
        into = self.result[where]
        if adds:
            np.add(self._slice(where, piece), came, out=into)
        else:
            into[:] = came
        self._written[piece] = True

    def _slice(self, where: slice, piece: int) -> Vector:
        """Return the current values of a piece."""
        return self.result[where] if self._written[piece] else self._vector[where]

    def _is_sent(self, piece: int, item: Item) -> bool:
        """Send a piece unless the peer's queue is full; return True if it was sent."""
        endpoint = self._endpoints[item.lane]
        name = lane_name(self._names[item.other], item.lane)
        if endpoint.unread_bytes(name) > AHEAD_BYTES:
            return False
        values = self._slice(slice(*self._pieces[piece]), piece)
        header = {REDUCTION_KEY: self.number, "piece": piece, "stage": item.stage}
        if not endpoint.send(name, header, [values.data]):
            raise RankError(f"{self._names[item.other]} was lost in a reduction; reduce again without it")
        return True

    def _finish(self) -> None:
        """Complete the result at the end: pieces without additions are the rank's own."""
        if self._remaining or self.result is self._vector:
            return
        for piece, (begin, end) in enumerate(self._pieces):
            if not self._written[piece]:
                self.result[begin:end] = self._vector[begin:end]
                self._written[piece] = True

    def _misfit(self, message: Message) -> ClusterError:
        return ClusterError(
            f"{message.sender} sent a message that is not in the plan of reduction {self.number}; all ranks "
            "must follow the same plan"
        )


class Reducer:
    """Reductions of one process, one at a time; messages that arrive before their reduction starts are kept.

    Numbers of reductions increase; messages of earlier ones are dropped. All processes must use the same
    ``piece_bytes`` (None: the value of `geometry.reduction_time.piece_elements`).
    """

    def __init__(self, endpoints: Sequence[Endpoint], piece_bytes: int | None = None) -> None:
        self._endpoints, self._piece_bytes = endpoints, piece_bytes
        self._early: list[Message] = []
        self._early_bytes = 0
        self._newest = -1
        self.current: Reduction | None = None

    def begin(
        self, number: int, plan: ReductionPlan, names: Sequence[str], rank: int, vector: Vector
    ) -> Reduction:
        """Start a reduction and abandon any other; raise ClusterError and RankError as `Reduction` does."""
        if number <= self._newest:
            raise ClusterError(f"reduction numbers must increase, got {number} after {self._newest}")
        self._newest = number
        early, self._early, self._early_bytes = self._early, [], 0
        self.current = Reduction(number, plan, names, rank, vector, self._endpoints, self._piece_bytes)
        self.current.start()
        for message in early:
            self.receive(message)
        return self.current

    def receive(self, message: Message) -> bool:
        """Handle a message if it belongs to a reduction; return True if so.

        Raise ClusterError if it does not fit the plan, or if peers are too far ahead.
        """
        number = message.header.get(REDUCTION_KEY)
        if not isinstance(number, int):
            return False
        if self.current is not None and number == self.current.number:
            self.current.receive(message)
        elif number > self._newest:
            self._early_bytes += sum(one.nbytes for one in message.buffers)
            if self._early_bytes > EARLY_BYTES:
                raise ClusterError(
                    f"{message.sender} sent {EARLY_BYTES} bytes of a reduction that has not begun here"
                )
            self._early.append(message)
        return True

    def abandon(self) -> None:
        """Abandon the current reduction; its input vector is unchanged."""
        self.current = None

    def run(
        self,
        number: int,
        plan: ReductionPlan,
        names: Sequence[str],
        rank: int,
        vector: Vector,
        timeout_seconds: float,
    ) -> Vector:
        """Execute a reduction in a process without other tasks; return `Reduction.result`.

        Other messages are dropped. Raise RankError if a member is lost, or if nothing arrives for
        ``timeout_seconds``.
        """
        reduction = self.begin(number, plan, names, rank, vector)
        heard = time.monotonic()
        while not reduction.is_done:
            waits = _HELD_SECONDS if reduction.has_unsent or len(self._endpoints) > 1 else timeout_seconds
            for event in self._events(waits):
                if isinstance(event, Lost) and _base(event.peer) in reduction.partners:
                    self.abandon()
                    raise RankError(f"{event.peer} was lost in a reduction: {event.why}; reduce without it")
                if isinstance(event, Message) and self.receive(event):
                    heard = time.monotonic()
            reduction.proceed()
            if time.monotonic() - heard > timeout_seconds:
                self.abandon()
                raise RankError(
                    f"nothing arrived for {timeout_seconds:.3g} s in a reduction with "
                    f"{' and '.join(sorted(reduction.partners))}; check that these processes are running"
                )
        for endpoint in self._endpoints:
            endpoint.flush(timeout_seconds)
        return reduction.result

    def _events(self, seconds: float) -> list[Event]:
        """Return the events of all endpoints; if there are none, wait for the first."""
        found = [event for one in self._endpoints if (event := one.receive(0)) is not None]
        if not found and (event := self._endpoints[0].receive(seconds)) is not None:
            found.append(event)
        return found


def lane_name(name: str, lane: int) -> str:
    """Return the name of a process's endpoint of one lane: its first endpoint's name and the lane number."""
    return name if lane == 0 else f"{name}/lane{lane}"


def _base(name: str) -> str:
    return name.partition("/lane")[0]
