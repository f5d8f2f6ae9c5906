"""What a primary has to say, and may not yet.

Knows: answers, the index that must be committed before each, orders whose answers no disk may have yet. Does
not know: when an index is committed, who is asked for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cotswold.wire import FrozenPart, Ordered, Pulled, Send


def answer_of(send: Send) -> object:
    """What is the same of an answer, and of the answer to the same question if that is asked again."""
    said = send.message
    known = [getattr(said, name, None) for name in ("session", "number", "evaluation", "checkpoint", "name")]
    shards = said.shards if isinstance(said, Pulled | FrozenPart) else ()
    return (send.to, type(said), *known, shards)


class Held:
    """Answers in the order of their indexes: one that is asked for again is held once."""

    def __init__(self) -> None:
        self._of: OrderedDict[object, tuple[int, Send]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, send: Send) -> bool:
        return answer_of(send) in self._of

    def __iter__(self) -> Iterator[Send]:
        """What is held."""
        return (send for _, send in self._of.values())

    def add(self, sends: Iterable[Send], index: int) -> list[object]:
        """Hold what is not held yet, until an index is committed; by which keys."""
        new = {answer_of(each): (index, each) for each in sends}
        self._of.update(new)
        return list(new)

    def keep(self, keys: Iterable[object], kept: Callable[[Send], Send]) -> None:
        """Of these, whatever was not said at once is `kept` as it is now."""
        for key in keys:
            if key in self._of:
                index, send = self._of[key]
                self._of[key] = index, kept(send)

    def committed(self, index: int) -> list[Send]:
        """What may be said now."""
        sends = []
        while self._of and next(iter(self._of.values()))[0] <= index:
            sends.append(self._of.popitem(last=False)[1][1])
        return sends

    def clear(self) -> None:
        """Nothing of it is said."""
        self._of.clear()


class Answers:
    """Those to orders, of one time as primary: what of them all disks have."""

    def __init__(self) -> None:
        self._since: deque[tuple[int, int]] = deque()
        """(index, order), of those that a disk may not have."""
        self._everywhere = 0
        """The newest order whose answer all disks have."""

    def answer(self, ordered: Ordered, life: int, index: int, least: int | None) -> Ordered:
        """An answer besides says which life this is, and what all disks have, which have everything to
        ``least``; None where nothing is saved."""
        saved = None
        if least is not None:
            while self._since and self._since[0][0] <= least:
                self._everywhere = self._since.popleft()[1]
            saved = self._everywhere
            self._since.append((index, ordered.number))
        return replace(ordered, life=life, saved=saved)

    def clear(self) -> None:
        """Others answer."""
        self._since.clear()
