"""Replies of a primary that wait for a commit.

Knows: replies, the index that each waits for, acknowledgements whose index may not be durable yet. Does not
know: when an index is committed, which replicas acknowledge it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cotswold.wire import CoordinatorStateAck, FrozenPart, Pulled, Send


def reply_key(send: Send) -> object:
    """Return a key that is equal for all replies to the same request."""
    said = send.message
    known = [getattr(said, name, None) for name in ("session", "number", "evaluation", "checkpoint", "name")]
    shards = said.shards if isinstance(said, Pulled | FrozenPart) else ()
    return (send.to, type(said), *known, shards)


class PendingReplies:
    """Replies in the order of their indexes. A repeated request does not add a second reply."""

    def __init__(self) -> None:
        self._of: OrderedDict[object, tuple[int, Send]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, send: Send) -> bool:
        return reply_key(send) in self._of

    def __iter__(self) -> Iterator[Send]:
        """Return an iterator over the replies."""
        return (send for _, send in self._of.values())

    def add(self, sends: Iterable[Send], index: int) -> list[object]:
        """Add replies that wait for an index, unless they already wait; return their keys."""
        new = {reply_key(each): (index, each) for each in sends}
        self._of.update(new)
        return list(new)

    def hold(self, keys: Iterable[object], wrap: Callable[[Send], Send]) -> None:
        """Replace those of these replies that still wait by a copy from `wrap`."""
        for key in keys:
            if key in self._of:
                index, send = self._of[key]
                self._of[key] = index, wrap(send)

    def committed(self, index: int) -> list[Send]:
        """Remove and return the replies that may be sent now."""
        sends = []
        while self._of and next(iter(self._of.values()))[0] <= index:
            sends.append(self._of.popitem(last=False)[1][1])
        return sends

    def clear(self) -> None:
        """Discard all replies."""
        self._of.clear()


class CoordinatorReplies:
    """Replies to the coordinator since this replica became the primary, and which of them are durable
    everywhere."""

    def __init__(self) -> None:
        self._by_index: deque[tuple[int, int]] = deque()
        """(index, number) of the replies that may not be durable everywhere."""
        self._on_all = 0
        """Number of the newest reply that is durable on all disks."""

    def answer(
        self, ack: CoordinatorStateAck, incarnation: int, index: int, committed: int | None
    ) -> CoordinatorStateAck:
        """Return the reply with the incarnation, and with the newest number that is durable everywhere.
        All disks have everything up to ``committed``; None if nothing is saved."""
        saved = None
        if committed is not None:
            while self._by_index and self._by_index[0][0] <= committed:
                self._on_all = self._by_index.popleft()[1]
            saved = self._on_all
            self._by_index.append((index, ack.number))
        return replace(ack, incarnation=incarnation, durable_state=saved)

    def clear(self) -> None:
        """Discard all numbers: another replica leads."""
        self._by_index.clear()
