"""How workers get the point of an evaluation: pulled, or made from what they keep, and compared.

Knows: who has which vectors, what each was told, digests. Does not know: portions.

    a worker that                                    is told to
    keeps nothing                                    pull the point
    was ready for the evaluation before              take what changed by a broadcast, and make the point
    was not (it is new, or was silent)               pull all that workers keep, and make the point
    has a point with another digest, or no luck      the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cotswold.batch.core.requests import Event, Planner, Request
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import Begin, Fetch, Ready, Send


@dataclass
class Beginning:
    """Of one evaluation."""

    number: int
    request: Request
    members: Members
    planner: Planner
    events: list[Event]
    is_doubtful: Callable[[Member, float], bool]
    """Whether a worker may be stopped: no broadcast waits for it."""
    attempt: int = 0
    """The newest attempt, of a beginning or a reduction, that anybody was told."""
    digests: tuple[int, ...] | None = None
    """Those of the point on the shards, once it is known."""
    _told: dict[int, Begin] = field(default_factory=dict)
    """By session."""

    def all(self, now: float) -> list[Send]:
        """Everybody is told."""
        fresh = [
            member for member in self.members if self._is_fresh(member) and not self.is_doubtful(member, now)
        ]
        plan = None
        if self.request.changed and len(fresh) > 1:
            plan = self.planner([member.name for member in fresh])
            assert set(plan.members) == {member.name for member in fresh}, (
                "a plan is over those that it is asked for"
            )
        fetches = tuple(Fetch(name, plan) for name in self.request.changed)
        sends = []
        for member in self.members:
            member.entered()
            sends.append(self._tell(member, fetches if member in fresh else self._everything, now))
        return sends

    def one(self, member: Member, now: float) -> Send:
        """A worker is told to get everything: it is new, or a way to fetch has failed."""
        return self._tell(member, self._everything, now)

    def again(self, member: Member, now: float) -> list[Send]:
        """A worker has not heard what it was told."""
        begin = self._told.get(member.session)
        if begin is None:
            return []
        member.told = now
        return [Send(member.name, begin)]

    def ready(self, member: Member, ready: Ready, now: float) -> list[Send]:
        """A worker has the point of this evaluation."""
        if member.is_ready or ready.attempt != self._told[member.session].attempt:
            return []
        member.digests = ready.digests
        return self._compared([member], now)

    def opened(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """The shards have the point: points that workers have already are compared with it."""
        self.digests = digests
        return self._compared([member for member in self.members if not member.is_ready], now)

    def broken(self, now: float) -> list[Send]:
        """A broadcast broke off, or one of its members is lost: whoever waits for it pulls."""
        sends = []
        for member in self.members:
            begin = self._told.get(member.session)
            if begin is not None and not member.is_ready and any(fetch.plan for fetch in begin.fetches):
                sends.append(self.one(member, now))
        return sends

    def is_awaited(self, name: str) -> bool:
        """Whether somebody who is not ready waits for a broadcast that this worker is in."""
        return any(
            fetch.plan is not None and name in fetch.plan.members
            for member in self.members
            if not member.is_ready and member.session in self._told
            for fetch in self._told[member.session].fetches
        )

    @property
    def _everything(self) -> tuple[Fetch, ...]:
        return tuple(Fetch(name, None) for name in self.request.keeps or (self.request.at,))

    def _is_fresh(self, member: Member) -> bool:
        return bool(self.request.keeps) and self.number > 1 and member.ready_for == self.number - 1

    def _tell(self, member: Member, fetches: tuple[Fetch, ...], now: float) -> Send:
        self.attempt += 1
        begin = Begin(
            member.session,
            self.number,
            self.attempt,
            self.request.at,
            self.request.gradient is not None,
            fetches,
            self.request.local,
            digests=bool(self.request.keeps),
        )
        self._told[member.session] = begin
        member.attempt, member.told, member.digests = self.attempt, now, None
        return Send(member.name, begin)

    def _compared(self, members: Sequence[Member], now: float) -> list[Send]:
        sends = []
        for member in members:
            if member.digests is None or self.digests is None:
                continue  # one of both is not there yet
            if member.digests == self.digests:
                member.is_ready, member.ready_for, member.progress = True, self.number, now
                continue
            self.events.append(Event("differs", member.name, "its parameters are not those of the servers"))
            member.ready_for = 0
            sends.append(self.one(member, now))
        return sends
