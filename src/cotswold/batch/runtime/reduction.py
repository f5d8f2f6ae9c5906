"""A plan of a reduction carried out over endpoints: sums and broadcasts of vectors, in pieces.

Knows: plans, messages with pieces of vectors, who of the plan is lost. Does not know: portions, who decides
what is reduced, how plans are chosen.

The own vector is never written to: the sum grows in another one. So a reduction in which somebody dies can be
given up and made again by another plan. Messages are added in the order of the plan, whatever order they come
in: the same plan gives the same bits.
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

Vector: TypeAlias = "np.ndarray[Any, np.dtype[np.floating[Any]]]"

KEY = "reduction"
"""In the header of a message that belongs to a reduction: its number."""
AHEAD_BYTES = 8 << 20
"""Handed to the connection to a peer, at most, before the peer has taken some of it."""
_HELD_SECONDS = 0.002
"""How soon it is looked again whether a peer has taken something."""
EARLY_BYTES = 1 << 30
"""Kept of reductions that begin here later than elsewhere, at most."""


class Reduction:
    """One rank's part in a plan. ``names`` are the peers of all ranks, ``endpoints`` one for each lane, which
    both sides of a message have connected with each other before they start.

    Start it, and hand it every message that is its own (`take`), until `is_done`; the endpoints must be
    served (`receive`, `flush`) until what they were given has left. ``result`` is the sum at the root (in a
    broadcast: the root's vector, at every rank); elsewhere a part of it, and of no use.
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
                f"a vector {vector.shape} does not suit a plan of {plan.count} elements; hand in a flat one"
            )
        if len(names) != plan.ranks or not 0 <= rank < plan.ranks or plan.lanes > len(endpoints):
            raise ClusterError(
                f"a plan of {plan.ranks} ranks over {plan.lanes} networks needs a name for each rank and an "
                f"endpoint for each network, not {len(names)} and {len(endpoints)}"
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
        self._at = [0] * len(self._pieces)
        self._touched = [False] * len(self._pieces)
        """Which pieces lie in the result, and not in the own vector."""
        self._came: dict[tuple[int, int, int], memoryview] = {}
        """What came and cannot be used yet, by piece, stage and sender."""
        self._held: set[int] = set()
        """Pieces whose next message waits until a peer takes more."""
        self._left = sum(map(len, self._agenda))
        self._ranks = {name: at for at, name in enumerate(names)}
        self.partners = frozenset(names[item.other] for items in self._agenda for item in items)
        """The peers with which this rank exchanges something."""

    @property
    def is_done(self) -> bool:
        """Whether this rank has nothing left to do."""
        return self._left == 0

    @property
    def is_held(self) -> bool:
        """Whether something waits until a peer takes more: ask again (`proceed`) after a moment."""
        return bool(self._held)

    def start(self) -> None:
        """Send what waits for nobody."""
        for piece in range(len(self._pieces)):
            self._proceed(piece)
        self._finish()

    def take(self, message: Message) -> None:
        """A message of this reduction; raises ClusterError where it does not fit the plan."""
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
            for item in self._agenda[piece][self._at[piece] :]
        )
        if values.nbytes != (end - begin) * self._vector.itemsize or not expected:
            raise self._misfit(message)
        self._came[piece, stage, sender] = values
        self._proceed(piece)
        self._finish()

    def proceed(self) -> None:
        """Send what was held back, as far as peers take it; raises RankError where one is lost."""
        held, self._held = self._held, set()
        for piece in sorted(held):
            self._proceed(piece)
        self._finish()

    def _proceed(self, piece: int) -> None:
        """Do with a piece what the plan says, up to a message that has not come or cannot be taken yet."""
        items = self._agenda[piece]
        begin, end = self._pieces[piece]
        while self._at[piece] < len(items):
            item = items[self._at[piece]]
            if item.sends:
                if not self._is_sent(piece, item):
                    self._held.add(piece)
                    return
            else:
                values = self._came.pop((piece, item.stage, item.other), None)
                if values is None:
                    return
                self._put(slice(begin, end), piece, values, adds=item.adds)
            self._at[piece] += 1
            self._left -= 1

    def _put(self, where: slice, piece: int, values: memoryview, *, adds: bool) -> None:
        """Add what came, or put it in the place of what this rank has."""
        came = np.frombuffer(values, self._vector.dtype)
        into = self.result[where]
        if adds:
            np.add(self._own(where, piece), came, out=into)
        else:
            into[:] = came
        self._touched[piece] = True

    def _own(self, where: slice, piece: int) -> Vector:
        """What this rank has of a piece so far."""
        return self.result[where] if self._touched[piece] else self._vector[where]

    def _is_sent(self, piece: int, item: Item) -> bool:
        """Send a piece, unless the peer has enough to take already."""
        endpoint = self._endpoints[item.lane]
        name = lane_name(self._names[item.other], item.lane)
        if endpoint.waiting_bytes(name) > AHEAD_BYTES:
            return False
        values = self._own(slice(*self._pieces[piece]), piece)
        header = {KEY: self.number, "piece": piece, "stage": item.stage}
        if not endpoint.send(name, header, [values.data]):
            raise RankError(f"{self._names[item.other]} was lost in a reduction; reduce again without it")
        return True

    def _finish(self) -> None:
        """Complete the result, at the end: pieces that nobody added to are the rank's own."""
        if self._left or self.result is self._vector:
            return
        for piece, (begin, end) in enumerate(self._pieces):
            if not self._touched[piece]:
                self.result[begin:end] = self._vector[begin:end]
                self._touched[piece] = True

    def _misfit(self, message: Message) -> ClusterError:
        return ClusterError(
            f"{message.sender} sent what is not in the plan of reduction {self.number}; all ranks must "
            "follow the same plan"
        )


class Reducer:
    """Reductions of one process, one at a time; messages that come before their reduction begins are kept.

    Numbers of reductions rise. What is left of an earlier one is dropped. All processes must have the same
    ``piece_bytes`` (None: as `geometry.reduction_time.piece_elements` says).
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
        """Start a reduction, giving up any other; raises ClusterError, RankError as `Reduction` does."""
        if number <= self._newest:
            raise ClusterError(f"reduction {number} comes after {self._newest}; number reductions upwards")
        self._newest = number
        early, self._early, self._early_bytes = self._early, [], 0
        self.current = Reduction(number, plan, names, rank, vector, self._endpoints, self._piece_bytes)
        self.current.start()
        for message in early:
            self.take(message)
        return self.current

    def take(self, message: Message) -> bool:
        """Whether a message belongs to a reduction; if so it is dealt with.

        Raises ClusterError where it does not fit the plan, or others are too far ahead.
        """
        number = message.header.get(KEY)
        if not isinstance(number, int):
            return False
        if self.current is not None and number == self.current.number:
            self.current.take(message)
        elif number > self._newest:
            self._early_bytes += sum(one.nbytes for one in message.buffers)
            if self._early_bytes > EARLY_BYTES:
                raise ClusterError(
                    f"{message.sender} sends {EARLY_BYTES} bytes of a reduction that has not begun here"
                )
            self._early.append(message)
        return True

    def abandon(self) -> None:
        """Give the present reduction up; the vector that was handed in is as it was."""
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
        """Carry a reduction out, for a process that does nothing else meanwhile; its `Reduction.result`.

        Other messages that come are dropped. Raises RankError where one of the plan is lost, or nothing comes
        for so many seconds.
        """
        reduction = self.begin(number, plan, names, rank, vector)
        heard = time.monotonic()
        while not reduction.is_done:
            waits = _HELD_SECONDS if reduction.is_held or len(self._endpoints) > 1 else timeout_seconds
            for event in self._events(waits):
                if isinstance(event, Lost) and _base(event.peer) in reduction.partners:
                    self.abandon()
                    raise RankError(f"{event.peer} was lost in a reduction: {event.why}; reduce without it")
                if isinstance(event, Message) and self.take(event):
                    heard = time.monotonic()
            reduction.proceed()
            if time.monotonic() - heard > timeout_seconds:
                self.abandon()
                raise RankError(
                    f"nothing came for {timeout_seconds:.3g} s in a reduction with "
                    f"{' and '.join(sorted(reduction.partners))}; see whether they are stopped"
                )
        for endpoint in self._endpoints:
            endpoint.flush(timeout_seconds)
        return reduction.result

    def _events(self, seconds: float) -> list[Event]:
        """What has come to any endpoint; waits for the first where there is nothing."""
        found = [event for one in self._endpoints if (event := one.receive(0)) is not None]
        if not found and (event := self._endpoints[0].receive(seconds)) is not None:
            found.append(event)
        return found


def lane_name(name: str, lane: int) -> str:
    """The name of a process's endpoint of one lane: that of its first endpoint, and the lane's number."""
    return name if lane == 0 else f"{name}/lane{lane}"


def _base(name: str) -> str:
    return name.partition("/lane")[0]
