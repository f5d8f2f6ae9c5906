"""Who is there: sessions of workers, what each was last heard to do, who is silent.

Knows: names, sessions, attempts, speeds, when each was heard. Does not know: portions, evaluations' states.

    a worker           hears or does                          then
    unknown            Join                                   session n, `Welcome`
    session n          Join again, same attempt               the same `Welcome`
    session n          Join, higher attempt                   n is void, session m
    session n          silent for too long                    n is void
    session n          its process ended                      n is void
    n is void          anything but Join                      `Rejoin`
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
    heard: float
    """When anything came from it last."""
    seconds: float | None = None
    """What a portion takes, newest speeds weighing more; None before its first."""
    progress: float = 0.0
    """When it last finished a portion, or got one with empty hands."""
    grants: int = 0
    """The number of its newest grant."""
    ready_for: int = 0
    """The newest evaluation whose point it had."""
    attempt: int = 0
    """The newest attempt that it was sent, in the evaluation that is on."""
    told: float = 0.0
    """When it was sent that."""
    digests: tuple[int, ...] | None = None
    """Of its point, until they are compared."""
    is_ready: bool = False
    """Whether it computes what it is granted, in the evaluation that is on."""
    is_flushed: bool = False
    """Whether it was told to push what it has."""
    is_leaving: bool = False

    def timed(self, seconds: float) -> None:
        """A portion took it this long."""
        if seconds > 0:
            self.seconds = seconds if self.seconds is None else (self.seconds + seconds) / 2

    def entered(self) -> None:
        """An evaluation begins, for which it is not ready yet."""
        self.attempt, self.told, self.digests = 0, 0.0, None
        self.is_ready = self.is_flushed = False


@dataclass
class Members:
    """All sessions that are not void."""

    newest: int = 0
    """The session that was given last."""
    of: dict[int, Member] = field(default_factory=dict)
    """By session, in the order of their joining."""
    _sessions: dict[str, int] = field(default_factory=dict)
    """Of each name."""
    _attempts: dict[str, int] = field(default_factory=dict)
    """The highest of each name, void ones too until they are forgotten: an older `Join` that comes late
    begins nothing."""

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self.of.values()))

    def __len__(self) -> int:
        return len(self.of)

    def session(self, name: str) -> int | None:
        """The session of a worker; None where it has none."""
        return self._sessions.get(name)

    def is_known(self, join: Join) -> bool:
        """Whether this `Join`, or a later one of the same worker, has come before."""
        return join.attempt <= self._attempts.get(join.name, -1)

    def add(self, join: Join, now: float) -> Member:
        """A new session; the worker has none."""
        assert join.name not in self._sessions, f"{join.name} has a session already"
        assert not self.is_known(join), f"{join.name} joins twice in attempt {join.attempt}"
        self.newest += 1
        member = Member(self.newest, join.name, join, now, progress=now)
        self.of[member.session] = member
        self._sessions[join.name] = member.session
        self._attempts[join.name] = join.attempt
        return member

    def void(self, session: int) -> Member:
        """The session is over, for ever."""
        member = self.of.pop(session)
        del self._sessions[member.name]
        return member

    def forget(self, name: str) -> None:
        """Nothing late can come of a name, unless it has a session again."""
        if name not in self._sessions:
            self._attempts.pop(name, None)

    def silent(self, since: float) -> list[Member]:
        """Who was not heard after ``since``."""
        return [member for member in self if member.heard < since]

    def seconds(self, session: int) -> float:
        """What a portion takes a session: its own speed, else the mean of the known ones, else 1."""
        member = self.of.get(session)
        return self.mean_seconds if member is None or member.seconds is None else member.seconds

    @property
    def mean_seconds(self) -> float:
        """What a portion takes a worker on average; 1 where that is not known."""
        known = [each.seconds for each in self.of.values() if each.seconds is not None]
        return sum(known) / len(known) if known else 1.0

    @property
    def least_seconds(self) -> float:
        """What a portion takes the fastest; 1 where that is not known."""
        return min((each.seconds for each in self.of.values() if each.seconds is not None), default=1.0)

    @property
    def rate(self) -> float:
        """Portions a second of all that are ready."""
        mean = self.mean_seconds
        return sum(1 / (each.seconds or mean) for each in self.of.values() if each.is_ready)
