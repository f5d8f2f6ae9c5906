"""Sessions of replicas on a server: numbers of updates, samples applied and refused, pulled versions.

Knows: live sessions, the newest number of each, samples, pulled versions, received markers. Does not know:
the queue, the contents of updates, shards.

A session is one incarnation of a replica; all of its numbers are dropped when it is over. A session that
begins during a checkpoint owes no marker of it. For a session that ends during a checkpoint, the checkpoint
includes its applied samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotswold.paramserver.core.staleness import StalenessHistogram
from cotswold.wire import Applied, Change, Ranges, SessionState, UpdateRefused
from cotswold.wire.ranges import add, clip, difference, union


class Rejection(NamedTuple):
    """Why a message is rejected: a short word for programs and a sentence for people."""

    code: str
    reason: str


@dataclass
class Session:
    """One session."""

    name: str
    last: int = 0
    """Number of its newest update; 0 before the first."""
    answer: Applied | UpdateRefused | None = None
    """Reply to the newest update; None before the first, while it is queued, and if another replica of the
    shards sent the reply."""
    is_waiting: bool = False
    """True if the newest update is not answered yet."""
    samples: Ranges = ()
    """Samples applied on this server and not settled."""
    missed: Ranges = ()
    """Samples of permanently refused updates, not settled."""
    checkpoint: int = 0
    """Newest checkpoint whose marker has arrived or is not required."""
    marked: int = 0
    """Newest checkpoint whose marker it has sent."""
    worked: int = 0
    """Number of its newest update that is not a marker."""
    staleness: StalenessHistogram = field(default_factory=StalenessHistogram)
    """Staleness of its updates, counted per shard."""
    pulled_for: int = 0
    """Number of the update for which it pulled: one more than its newest update that was not a marker."""
    bases: dict[int, int] = field(default_factory=dict)
    """Lowest version of each shard that it has pulled for that update."""
    is_changed: bool = True
    """True if its replicated state has changed since `Sessions.take_changed`."""

    def took(self, number: int, checkpoint: int, *, is_empty: bool) -> None:
        """Use up its next number for an update that knows ``checkpoint``.

        A marker does not end the computation from its last pull. Any other update does, even an empty one.
        """
        self.last = number
        if not is_empty or checkpoint <= self.marked:
            self.worked = number
        self.marked = max(self.marked, checkpoint)
        self.is_waiting = not is_empty
        self.is_changed = self.is_changed or is_empty  # a queued update is sent again after a failover

    def pulled(self, number: int, versions: Iterable[tuple[int, int]]) -> None:
        """Record a pull of (shard, version), numbered as in `PullNewer`."""
        if number != self.worked + 1:
            return
        if number > self.pulled_for:
            self.pulled_for, self.bases = number, {}
        for shard, version in versions:  # a repeated pull: the first reply may have arrived
            self.bases.setdefault(shard, version)

    def waits(self) -> None:
        """Record that its computed update found the queue full."""
        self.bases = {}

    @property
    def computes_from(self) -> Mapping[int, int]:
        """Lowest version of each shard that it computes from now; empty if no other session must wait for
        it."""
        return self.bases if self.pulled_for == self.worked + 1 else {}

    def has_applied(self, samples: Ranges, answer: Applied) -> None:
        """Record that an update of these samples is in the shards."""
        self.samples, self.answer = add(self.samples, samples), answer
        self.is_waiting, self.is_changed = False, True

    def has_missed(self, samples: Ranges, answer: UpdateRefused, applied: Ranges = ()) -> None:
        """Record that an update of these samples was permanently refused; another session had ``applied``
        some of them."""
        self.samples = add(self.samples, applied)
        self.missed, self.answer = add(self.missed, samples), answer
        self.is_waiting, self.is_changed = False, True

    def state(self, number: int) -> SessionState:
        """Return its replicated state; queued updates are left out."""
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
        """Return a session from its replicated state."""
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
    """Live sessions, and ended ones as long as their samples must be reported."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.living: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        """Sessions that ended with the newest coordinator state."""
        self._gone: dict[int, Session] = {}
        """Sessions that ended since the start of a checkpoint that is not frozen."""
        self._past: dict[int, Session] = {}
        """Sessions that ended earlier and have samples that are not settled."""
        self.keeps_past = False
        """True if past sessions are reported, because reports that are not on a disk may be lost."""

    @property
    def changed(self) -> bool:
        """True if any session has changed since `take_changed`."""
        return any(each.is_changed for some in self._kinds for each in some.values())

    def take_changed(self) -> set[int]:
        """Return the numbers of the sessions that changed since the last call."""
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
        """Numbers of all sessions."""
        return set(self._all)

    @property
    def newest(self) -> int:
        """The greatest number of all sessions."""
        return max(self._all, default=0)

    def applied_of(self, samples: Ranges) -> Ranges:
        """Return those of these positions that any session has applied and that are not settled."""
        found = [
            part
            for some in self._kinds
            for each in some.values()
            for start, stop in samples
            for part in clip(each.samples, start, stop)
        ]
        return union(found) if found else ()

    @property
    def past(self) -> tuple[int, ...]:
        """Numbers of the sessions that ended earlier and have samples that are not settled."""
        return tuple(self._past)

    @property
    def gone(self) -> tuple[int, ...]:
        """Numbers of the sessions that ended since the start of a checkpoint that is not frozen."""
        return tuple(self._gone)

    def states(self, numbers: Iterable[int] | None = None) -> tuple[SessionState, ...]:
        """Return the replicated states of these sessions [all]."""
        known = self._all
        wanted = known if numbers is None else known.keys() & set(numbers)
        return tuple(known[number].state(number) for number in sorted(wanted))

    def install(self, change: Change) -> None:
        """Install the sessions of the primary's change."""
        known = {**self._all, **{each.number: Session.of(each) for each in change.sessions}}
        self.living = {number: known[number] for number in change.living}
        self.ended = {number: known[number] for number in change.ended}
        self._gone = {number: known[number] for number in change.gone}
        self._past = {number: known[number] for number in change.past}

    def __iter__(self) -> Iterator[tuple[int, Session]]:
        """Iterate over the live sessions, by number."""
        return iter(self.living.items())

    def of(self, number: int) -> Session:
        """Return a session that is live or ended with the newest coordinator state."""
        return self.living.get(number) or self.ended[number]

    def of_sender(self, sender: str, run: str, number: int) -> Session | Rejection:
        """Return the sender's live session with this number, or the reason for rejecting it."""
        if run != self._run:
            return self.foreign(run)
        session = self.living.get(number)
        if session is None or session.name != sender:
            return Rejection("session", f"session: {number} is not a live session of {sender!r:.60}")
        return session

    def foreign(self, run: str) -> Rejection:
        """Return the reason for rejecting a message of another run."""
        reason = f"run: the message is for run {run!r:.60}, this server has {self._run!r}"
        return Rejection("run", reason)

    def live(self, names: Mapping[int, str], checkpoint: int, *, is_under_way: bool) -> None:
        """Set the live sessions; a new one owes no marker of ``checkpoint``, because it has sent no
        update."""
        if self.keeps_past:
            self._past |= {number: each for number, each in self.ended.items() if each.samples}
        for number, name in names.items():
            self.living.setdefault(number, Session(name, checkpoint=checkpoint))
        self.ended = {number: self.living.pop(number) for number in list(self.living) if number not in names}
        if is_under_way:
            self._gone.update(self.ended)

    def settle(self, settled: Ranges) -> None:
        """Drop the samples at settled positions."""
        for session in (*self.living.values(), *self.ended.values(), *self._past.values()):
            left = difference(session.samples, settled), difference(session.missed, settled)
            if left != (session.samples, session.missed):
                (session.samples, session.missed), session.is_changed = left, True
        self._past = {number: each for number, each in self._past.items() if each.samples}

    def owing(self, checkpoint: int) -> tuple[str, ...]:
        """Return the names of the sessions whose marker has not arrived."""
        return tuple(each.name for each in self.living.values() if each.checkpoint < checkpoint)

    def said(self, known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """Return (session, applied, refused) for an acknowledgement, without the known positions."""
        return _said({**self.ended, **self.living}, known)

    def said_of_past(self, known: Ranges) -> tuple[tuple[int, Ranges], ...]:
        """Return (session, applied) of the sessions that ended earlier, without the known positions."""
        return tuple((number, difference(each.samples, known)) for number, each in sorted(self._past.items()))

    def cut(self, known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """Return (session, applied, refused) for a checkpoint that is now frozen, of all sessions that were
        live since it began."""
        found, self._gone = _said({**self._gone, **self.living}, known), {}
        return found


def _said(sessions: Mapping[int, Session], known: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
    return tuple(
        (number, difference(session.samples, known), difference(session.missed, known))
        for number, session in sorted(sessions.items())
    )
