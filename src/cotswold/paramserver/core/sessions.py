"""Sessions of replicas as a server knows them: numbers of updates, what was applied, missed and pulled.

Knows: who lives, the newest number of each, samples, versions that were pulled, markers that are in. Does not
know: the queue, what an update says, shards.

A session is one incarnation of a replica, and no number of it is kept once it is over. One that begins while
a checkpoint is under way owes no marker of it; one that ends meanwhile is in it with what it had applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cotswold.paramserver.core.staleness import Histogram
from cotswold.wire import Applied, Change, Ranges, SessionState, UpdateRefused
from cotswold.wire.ranges import added, joined, part_of, without


@dataclass
class Session:
    """One of them."""

    name: str
    last: int = 0
    """The number of its newest update; 0 before the first."""
    answer: Applied | UpdateRefused | None = None
    """To the last; None before the first, while that waits, and where another copy gave it."""
    is_waiting: bool = False
    """Whether the last is not answered yet."""
    samples: Ranges = ()
    """Applied here, and not settled."""
    missed: Ranges = ()
    """Of updates that were refused for ever, and not settled."""
    checkpoint: int = 0
    """The newest whose marker is in, or that it need not mark."""
    marked: int = 0
    """The newest whose marker it has sent."""
    worked: int = 0
    """The number of its newest update that is no marker."""
    staleness: Histogram = field(default_factory=Histogram)
    """Of its updates, each shard's by itself."""
    pulled_for: int = 0
    """One more than the newest update that was no marker when it pulled for the next."""
    bases: dict[int, int] = field(default_factory=dict)
    """The least versions that it has pulled for that."""
    is_changed: bool = True
    """Whether what a copy must know of it is different since `Sessions.take_changed`."""

    def took(self, number: int, checkpoint: int, *, is_empty: bool) -> None:
        """Its next number is used up, by an update that has heard of ``checkpoint``.

        A marker says nothing of what it computes: that goes on. Any other update, an empty one too, ends it.
        """
        self.last = number
        if not is_empty or checkpoint <= self.marked:
            self.worked = number
        self.marked = max(self.marked, checkpoint)
        self.is_waiting = not is_empty
        self.is_changed = self.is_changed or is_empty  # what waits is sent again to another copy

    def pulled(self, number: int, versions: Iterable[tuple[int, int]]) -> None:
        """It has asked for these (shard, version), as `PullNewer` numbers it."""
        if number != self.worked + 1:
            return
        if number > self.pulled_for:
            self.pulled_for, self.bases = number, {}
        for shard, version in versions:  # asked again, it may have had the first answer
            self.bases.setdefault(shard, version)

    def waits(self) -> None:
        """It has computed what it pulled for, and its update finds no room."""
        self.bases = {}

    @property
    def computes_from(self) -> Mapping[int, int]:
        """The least version of each shard that it computes from now; none where nobody need wait for it."""
        return self.bases if self.pulled_for == self.worked + 1 else {}

    def has_applied(self, samples: Ranges, answer: Applied) -> None:
        """An update of these samples is in the shards."""
        self.samples, self.answer = added(self.samples, samples), answer
        self.is_waiting, self.is_changed = False, True

    def has_missed(self, samples: Ranges, answer: UpdateRefused, applied: Ranges = ()) -> None:
        """An update of these samples was refused for ever; another session had ``applied`` some of them."""
        self.samples = added(self.samples, applied)
        self.missed, self.answer = added(self.missed, samples), answer
        self.is_waiting, self.is_changed = False, True

    def state(self, number: int) -> SessionState:
        """What a copy must know of it: of an update that waits, nothing."""
        return SessionState(
            number,
            self.name,
            self.last - self.is_waiting,
            self.answer if isinstance(self.answer, Applied) else None,
            self.answer if isinstance(self.answer, UpdateRefused) else None,
            self.samples,
            self.missed,
            self.checkpoint,
            self.marked,
            self.worked,
        )

    @classmethod
    def of(cls, state: SessionState) -> Session:
        """As a copy knows it."""
        return cls(
            state.name,
            state.last,
            state.applied or state.refused,
            samples=state.samples,
            missed=state.missed,
            checkpoint=state.checkpoint,
            marked=state.marked,
            worked=state.worked,
            is_changed=False,
        )


class Sessions:
    """Those that live, and those that have ended as long as somebody is to hear of them."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.living: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        """With the newest order."""
        self._gone: dict[int, Session] = {}
        """That ended since a checkpoint began which is not frozen."""
        self._past: dict[int, Session] = {}
        """That ended with an order before, and have samples that are not settled."""
        self.keeps_past = False
        """Whether these are told of: what was said of them may be lost, as a disk has it not."""

    @property
    def changed(self) -> bool:
        """Whether any is different since `take_changed`."""
        return any(each.is_changed for some in self._kinds for each in some.values())

    def take_changed(self) -> set[int]:
        """The numbers of those that are different since this was called last."""
        found = set[int]()
        for some in self._kinds:
            for number, each in some.items():
                if each.is_changed:
                    found.add(number)
                    each.is_changed = False
        return found

    @property
    def _kinds(self) -> tuple[dict[int, Session], ...]:
        return self._past, self._gone, self.ended, self.living

    @property
    def _all(self) -> dict[int, Session]:
        return {**self._past, **self._gone, **self.ended, **self.living}

    @property
    def numbers(self) -> set[int]:
        """Of all."""
        return set(self._all)

    @property
    def newest(self) -> int:
        """The greatest number of all."""
        return max(self._all, default=0)

    def applied_of(self, samples: Ranges) -> Ranges:
        """Those of these places that any session has applied, and that are not settled."""
        found = [
            part
            for some in self._kinds
            for each in some.values()
            for start, stop in samples
            for part in part_of(each.samples, start, stop)
        ]
        return joined(found) if found else ()

    @property
    def past(self) -> tuple[int, ...]:
        """The numbers of those that ended with an order before, and have samples that are not settled."""
        return tuple(self._past)

    @property
    def gone(self) -> tuple[int, ...]:
        """The numbers of those that ended since a checkpoint began which is not frozen."""
        return tuple(self._gone)

    def states(self, numbers: Iterable[int] | None = None) -> tuple[SessionState, ...]:
        """What a copy must know of these; of all."""
        known = self._all
        wanted = known if numbers is None else known.keys() & set(numbers)
        return tuple(known[number].state(number) for number in sorted(wanted))

    def install(self, change: Change) -> None:
        """The primary has what is said there."""
        known = {**self._all, **{each.number: Session.of(each) for each in change.sessions}}
        self.living = {number: known[number] for number in change.living}
        self.ended = {number: known[number] for number in change.ended}
        self._gone = {number: known[number] for number in change.gone}
        self._past = {number: known[number] for number in change.past}

    def __iter__(self) -> Iterator[tuple[int, Session]]:
        """The living, by number."""
        return iter(self.living.items())

    def of(self, number: int) -> Session:
        """One that lives, or ended with the newest order."""
        return self.living.get(number) or self.ended[number]

    def of_sender(self, sender: str, run: str, number: int) -> Session | str:
        """The living session of whoever says that it has this number, or why it has none."""
        if run != self._run:
            return self.foreign(run)
        session = self.living.get(number)
        if session is None or session.name != sender:
            return f"session: {number} is no living session of {sender!r:.60}"
        return session

    def foreign(self, run: str) -> str:
        """What is wrong with a message of another run."""
        return f"run: it is meant for {run!r:.60}, and this is {self._run!r}"

    def live(self, names: Mapping[int, str], checkpoint: int, *, is_under_way: bool) -> None:
        """These live; whoever is new owes no marker of ``checkpoint``, for it has sent nothing."""
        if self.keeps_past:
            self._past |= {number: each for number, each in self.ended.items() if each.samples}
        for number, name in names.items():
            self.living.setdefault(number, Session(name, checkpoint=checkpoint))
        self.ended = {number: self.living.pop(number) for number in list(self.living) if number not in names}
        if is_under_way:
            self._gone.update(self.ended)

    def settle(self, settled: Ranges) -> None:
        """It is known what became of the samples at these places."""
        for session in (*self.living.values(), *self.ended.values(), *self._past.values()):
            left = without(session.samples, settled), without(session.missed, settled)
            if left != (session.samples, session.missed):
                (session.samples, session.missed), session.is_changed = left, True
        self._past = {number: each for number, each in self._past.items() if each.samples}

    def owing(self, checkpoint: int) -> tuple[str, ...]:
        """The names of those whose marker is not in."""
        return tuple(each.name for each in self.living.values() if each.checkpoint < checkpoint)

    def said(self, known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """What orders are answered with: (session, applied, missed), without the known places."""
        return _said({**self.ended, **self.living}, known)

    def said_of_past(self, known: Ranges) -> tuple[tuple[int, Ranges], ...]:
        """(session, applied), of those that ended with an order before, without the known places."""
        return tuple((number, without(each.samples, known)) for number, each in sorted(self._past.items()))

    def cut(self, known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """The same at a checkpoint, of all that have lived since it began; it is frozen now."""
        found, self._gone = _said({**self._gone, **self.living}, known), {}
        return found


def _said(sessions: Mapping[int, Session], known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
    return tuple(
        (number, without(session.samples, known), without(session.missed, known))
        for number, session in sorted(sessions.items())
    )
