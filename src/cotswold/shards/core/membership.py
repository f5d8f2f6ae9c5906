"""Membership: sessions of workers, their last messages, and their timeouts.

Knows: names, sessions, attempts, speeds, time of the last message. Does not know: portions, states of
evaluations.

    worker             event                                  result
    unknown            Join                                   session n, `Welcome`
    session n          Join again, same attempt               the same `Welcome`
    session n          Join, higher attempt                   n is void, session m
    session n          silent for too long                    n is void
    session n          its process exited                     n is void
    n is void          anything but Join                      `SessionExpired`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cotswold.wire import Join


@dataclass
class Member:
    """A worker in its session."""

    session: int
    name: str
    join: Join
    last_heartbeat: float
    """Time of its last message."""
    seconds: float | None = None
    """Seconds per portion, weighted towards recent portions; None before the first."""
    progress: float = 0.0
    """Time at which it last finished a portion, or received one while idle."""
    grants: int = 0
    """Number of its newest grant."""
    ready_evaluation: int = 0
    """Newest evaluation whose point it had."""
    attempt: int = 0
    """Newest attempt sent to it in the current evaluation."""
    sent_at: float = 0.0
    """Time at which that attempt was sent."""
    digests: tuple[int, ...] | None = None
    """Digests of its point, until they are compared."""
    is_ready: bool = False
    """True if it computes its grants in the current evaluation."""
    is_flushed: bool = False
    """True if it has to push its sums."""
    is_leaving: bool = False

    def timed(self, seconds: float) -> None:
        """Record the seconds of a portion."""
        if seconds > 0:
            self.seconds = seconds if self.seconds is None else (self.seconds + seconds) / 2

    def reset_attempt(self) -> None:
        """Reset its state for a new evaluation."""
        self.attempt, self.sent_at, self.digests = 0, 0.0, None
        self.is_ready = self.is_flushed = False


@dataclass
class Members:
    """All sessions that are not void."""

    newest: int = 0
    """Newest session number."""
    of: dict[int, Member] = field(default_factory=dict)
    """Members by session, in the order of joining."""
    _sessions: dict[str, int] = field(default_factory=dict)
    """Session by name."""
    _attempts: dict[str, int] = field(default_factory=dict)
    """Highest attempt by name, also of void sessions until they are forgotten: a late `Join` of an older
    attempt is ignored."""

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.of.values()))

    def __len__(self) -> int:
        return len(self.of)

    def session(self, name: str) -> int | None:
        """Return the session of a worker; None if it has none."""
        return self._sessions.get(name)

    def is_known(self, join: Join) -> bool:
        """True if this `Join`, or a later one of the same worker, has arrived before."""
        return join.attempt <= self._attempts.get(join.name, -1)

    def add(self, join: Join, now: float) -> Member:
        """Begin a session for a worker that has none."""
        assert join.name not in self._sessions, f"{join.name} already has a session"
        assert not self.is_known(join), f"{join.name} joins twice in attempt {join.attempt}"
        self.newest += 1
        member = Member(self.newest, join.name, join, now, progress=now)
        self.of[member.session] = member
        self._sessions[join.name] = member.session
        self._attempts[join.name] = join.attempt
        return member

    def end(self, session: int) -> Member:
        """End a session permanently."""
        member = self.of.pop(session)
        del self._sessions[member.name]
        return member

    def forget(self, name: str) -> None:
        """Forget the attempts of a name without a session, once no late message can arrive."""
        if name not in self._sessions:
            self._attempts.pop(name, None)

    def silent_members(self, since: float) -> list[Member]:
        """Return the members without a message after ``since``."""
        return [member for member in self if member.last_heartbeat < since]

    def seconds(self, session: int) -> float:
        """Return a session's seconds per portion: its own speed, else the mean of the known ones, else 1."""
        member = self.of.get(session)
        return self.mean_seconds if member is None or member.seconds is None else member.seconds

    @property
    def mean_seconds(self) -> float:
        """Mean seconds per portion of all workers; 1 if unknown."""
        known = [each.seconds for each in self.of.values() if each.seconds is not None]
        return sum(known) / len(known) if known else 1.0

    @property
    def least_seconds(self) -> float:
        """Seconds per portion of the fastest worker; 1 if unknown."""
        return min((each.seconds for each in self.of.values() if each.seconds is not None), default=1.0)

    @property
    def rate(self) -> float:
        """Portions per second of all ready workers together."""
        mean = self.mean_seconds
        return sum(1 / (each.seconds or mean) for each in self.of.values() if each.is_ready)
