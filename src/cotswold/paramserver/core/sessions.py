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
from cotswold.wire import Applied, BucketChange, Ranges, SessionState, UpdateRefused
from cotswold.wire.ranges import add, clip, difference, union


class Rejection(NamedTuple):
    """Why a message is rejected: a short word for programs and a sentence for people."""

    code: str
    reason: str


@dataclass
class SessionRecord:
    """One session."""

    name: str
    last: int = 0
    """Number of its newest update; 0 before the first."""
    answer: Applied | UpdateRefused | None = None
    """Reply to the newest update; None before the first, while it is queued, and if another replica of the
    shards sent the reply."""
    is_unanswered: bool = False
    """True if the newest update is not answered yet."""
    samples: Ranges = ()
    """Samples applied on this server and not settled."""
    refused_samples: Ranges = ()
    """Samples of permanently refused updates, not settled."""
    checkpoint: int = 0
    """Newest checkpoint whose marker has arrived or is not required."""
    sent_marker: int = 0
    """Newest checkpoint whose marker it has sent."""
    last_computed: int = 0
    """Number of its newest update that is not a marker."""
    staleness: StalenessHistogram = field(default_factory=StalenessHistogram)
    """Staleness of its updates, counted per shard."""
    pull_number: int = 0
    """Number of the update for which it pulled: one more than its newest update that was not a marker."""
    bases: dict[int, int] = field(default_factory=dict)
    """Lowest version of each shard that it has pulled for that update."""
    is_changed: bool = True
    """True if its replicated state has changed since `Sessions.take_changed`."""

    def use_number(self, number: int, checkpoint: int, *, is_empty: bool) -> None:
        """Use up its next number for an update that knows ``checkpoint``.

        A marker does not end the computation from its last pull. Any other update does, even an empty one.
        """
        self.last = number
        if not is_empty or checkpoint <= self.sent_marker:
            self.last_computed = number
        self.sent_marker = max(self.sent_marker, checkpoint)
        self.is_unanswered = not is_empty
        self.is_changed = self.is_changed or is_empty  # a queued update is sent again after a failover

    def record_pull(self, number: int, versions: Iterable[tuple[int, int]]) -> None:
        """Record a pull of (shard, version), numbered as in `PullNewer`."""
        if number != self.last_computed + 1:
            return
        if number > self.pull_number:
            self.pull_number, self.bases = number, {}
        for shard, version in versions:  # a repeated pull: the first reply may have arrived
            self.bases.setdefault(shard, version)

    def record_full_queue(self) -> None:
        """Record that its computed update found the queue full."""
        self.bases = {}

    @property
    def base_versions(self) -> Mapping[int, int]:
        """Lowest version of each shard that it computes from now; empty if no other session must wait for
        it."""
        return self.bases if self.pull_number == self.last_computed + 1 else {}

    def record_applied(self, samples: Ranges, answer: Applied) -> None:
        """Record that an update of these samples is in the shards."""
        self.samples, self.answer = add(self.samples, samples), answer
        self.is_unanswered, self.is_changed = False, True

    def record_refusal(self, samples: Ranges, answer: UpdateRefused, applied: Ranges = ()) -> None:
        """Record that an update of these samples was permanently refused; another session had ``applied``
        some of them."""
        self.samples = add(self.samples, applied)
        self.refused_samples, self.answer = add(self.refused_samples, samples), answer
        self.is_unanswered, self.is_changed = False, True

    def state(self, number: int) -> SessionState:
        """Return its replicated state; queued updates are left out."""
        return SessionState(
            number,
            self.name,
            self.last - self.is_unanswered,
            self.answer if isinstance(self.answer, Applied) else None,
            self.answer if isinstance(self.answer, UpdateRefused) else None,
            self.samples,
            self.refused_samples,
            self.checkpoint,
            self.sent_marker,
            self.last_computed,
        )

    @classmethod
    def of(cls, state: SessionState) -> SessionRecord:
        """Return a session from its replicated state."""
        return cls(
            state.name,
            state.last,
            state.applied or state.refused,
            samples=state.samples,
            refused_samples=state.refused_samples,
            checkpoint=state.checkpoint,
            sent_marker=state.sent_marker,
            last_computed=state.last_computed,
            is_changed=False,
        )


class Sessions:
    """Live sessions, and ended ones as long as their samples must be reported."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.live: dict[int, SessionRecord] = {}
        self.ended: dict[int, SessionRecord] = {}
        """Sessions that ended with the newest coordinator state."""
        self._ended_since_checkpoint: dict[int, SessionRecord] = {}
        """Sessions that ended since the start of a checkpoint that is not frozen."""
        self._ended_earlier: dict[int, SessionRecord] = {}
        """Sessions that ended earlier and have samples that are not settled."""
        self.reports_earlier = False
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
    def _kinds(self) -> tuple[dict[int, SessionRecord], ...]:
        return self._ended_earlier, self._ended_since_checkpoint, self.ended, self.live

    @property
    def _all(self) -> dict[int, SessionRecord]:
        return {**self._ended_earlier, **self._ended_since_checkpoint, **self.ended, **self.live}

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
    def ended_earlier(self) -> tuple[int, ...]:
        """Numbers of the sessions that ended earlier and have samples that are not settled."""
        return tuple(self._ended_earlier)

    @property
    def ended_since_checkpoint(self) -> tuple[int, ...]:
        """Numbers of the sessions that ended since the start of a checkpoint that is not frozen."""
        return tuple(self._ended_since_checkpoint)

    def states(self, numbers: Iterable[int] | None = None) -> tuple[SessionState, ...]:
        """Return the replicated states of these sessions [all]."""
        known = self._all
        wanted = known if numbers is None else known.keys() & set(numbers)
        return tuple(known[number].state(number) for number in sorted(wanted))

    def install(self, change: BucketChange) -> None:
        """Install the sessions of the primary's change."""
        known = {**self._all, **{each.number: SessionRecord.of(each) for each in change.sessions}}
        self.live = {number: known[number] for number in change.live}
        self.ended = {number: known[number] for number in change.ended}
        self._ended_since_checkpoint = {number: known[number] for number in change.ended_since_checkpoint}
        self._ended_earlier = {number: known[number] for number in change.ended_earlier}

    def __iter__(self) -> Iterator[tuple[int, SessionRecord]]:
        """Iterate over the live sessions, by number."""
        return iter(self.live.items())

    def of(self, number: int) -> SessionRecord:
        """Return a session that is live or ended with the newest coordinator state."""
        return self.live.get(number) or self.ended[number]

    def of_sender(self, sender: str, run: str, number: int) -> SessionRecord | Rejection:
        """Return the sender's live session with this number, or the reason for rejecting it."""
        if run != self._run:
            return self.wrong_run(run)
        session = self.live.get(number)
        if session is None or session.name != sender:
            return Rejection("session", f"session: {number} is not a live session of {sender!r:.60}")
        return session

    def wrong_run(self, run: str) -> Rejection:
        """Return the reason for rejecting a message of another run."""
        reason = f"run: the message is for run {run!r:.60}, this server has {self._run!r}"
        return Rejection("run", reason)

    def set_live(self, names: Mapping[int, str], checkpoint: int, *, is_freezing: bool) -> None:
        """Set the live sessions; a new one owes no marker of ``checkpoint``, because it has sent no
        update."""
        if self.reports_earlier:
            self._ended_earlier |= {number: each for number, each in self.ended.items() if each.samples}
        for number, name in names.items():
            self.live.setdefault(number, SessionRecord(name, checkpoint=checkpoint))
        self.ended = {number: self.live.pop(number) for number in list(self.live) if number not in names}
        if is_freezing:
            self._ended_since_checkpoint.update(self.ended)

    def settle(self, settled: Ranges) -> None:
        """Drop the samples at settled positions."""
        for session in (*self.live.values(), *self.ended.values(), *self._ended_earlier.values()):
            left = difference(session.samples, settled), difference(session.refused_samples, settled)
            if left != (session.samples, session.refused_samples):
                (session.samples, session.refused_samples), session.is_changed = left, True
        self._ended_earlier = {number: each for number, each in self._ended_earlier.items() if each.samples}

    def without_marker(self, checkpoint: int) -> tuple[str, ...]:
        """Return the names of the sessions whose marker has not arrived."""
        return tuple(each.name for each in self.live.values() if each.checkpoint < checkpoint)

    def report(self, recorded: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """Return (session, applied, refused) for an acknowledgement, without the known positions."""
        return _report({**self.ended, **self.live}, recorded)

    def report_ended_earlier(self, recorded: Ranges) -> tuple[tuple[int, Ranges], ...]:
        """Return (session, applied) of the sessions that ended earlier, without the known positions."""
        return tuple(
            (number, difference(each.samples, recorded))
            for number, each in sorted(self._ended_earlier.items())
        )

    def checkpoint_report(self, recorded: Ranges) -> tuple[tuple[int, Ranges, Ranges], ...]:
        """Return (session, applied, refused) for a checkpoint that is now frozen, of all sessions that were
        live since it began."""
        found, self._ended_since_checkpoint = (
            _report({**self._ended_since_checkpoint, **self.live}, recorded),
            {},
        )
        return found


def _report(
    sessions: Mapping[int, SessionRecord], recorded: Ranges
) -> tuple[tuple[int, Ranges, Ranges], ...]:
    return tuple(
        (number, difference(session.samples, recorded), difference(session.refused_samples, recorded))
        for number, session in sorted(sessions.items())
    )
