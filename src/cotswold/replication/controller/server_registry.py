"""Servers as whoever leads the controllers knows them: who lives, whose lease may hold, what each has.

Knows: when each was heard, until when a lease that it was given may hold, of which buckets it has copies,
whether it is drained. Does not know: groups, who is elected.

    a server            what happens                                 next
    unknown             Here                                         LIVING
    LIVING              silent until no lease of it can hold         GONE
    LIVING              heard, but hears no answer, for as long      GONE: it may not act, and cannot be told
    GONE                heard, and hears no answer                   GONE
    GONE                an operator gives it up                      ENDED, until it is heard
    LIVING              its supervisor has seen it end               ENDED, at once and for ever
    unknown             its supervisor has seen it end               unknown
    unknown             named, as what has a restored disk           ENDED: no process is called so
    unknown             written down as drained, without copies      ENDED, until it is heard
    GONE                Here                                         LIVING: it was cut off, or stopped
    GONE or ENDED       has no copies, and long nothing is heard     unknown

Of servers that were named by whoever led before, and have said nothing to this one, a lease may hold as long
as one that was given when this one began to lead. Whoever is drained lives as before, and gets nothing new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.replication.controller.load_index import Loads
from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import Here


@dataclass
class Known:
    """One server."""

    name: str
    host: str = ""
    address: str = ""
    peer_address: str = ""
    """Where other servers reach it."""
    is_living: bool = True
    held_until: float = 0.0
    """When no lease of it can hold any more, by the controller's clock."""
    leased_from: float | None = None
    """When it was given the first of the leases that it has had without a gap."""
    has_ended: bool = False
    """Whether its supervisor has seen the process end."""
    may_return: bool = False
    """Whether nobody has seen the process end: it lives again if it is heard."""
    is_drained: bool = False
    """Whether it is to have no copies."""
    heard: float | None = None
    """When it was, last."""
    answered: int = -1
    """The newest answer to a beat that it is known to have heard."""
    answered_at: float = float("inf")
    """When that was another last."""
    pause: float = 0.0
    """About how long it is silent between two beats."""
    copies: dict[str, None] = field(default_factory=dict)
    """Buckets of which it has, or is to have, a copy."""
    leads: dict[str, None] = field(default_factory=dict)
    """Those of which it is, or is to be, the primary."""

    @property
    def may_have_more(self) -> bool:
        """Whether copies may be put there."""
        return self.is_living and self.heard is not None and not self.is_drained

    def acts_for(self, now: float) -> float:
        """For how many seconds it has had leases; 0 for one that has none."""
        return 0.0 if self.leased_from is None else now - self.leased_from

    def hears(self, answered: int, now: float) -> float:
        """For how many seconds it has heard no answer, with this one as its newest."""
        if answered != self.answered:
            self.answered, self.answered_at = answered, now
        return now - self.answered_at

    def missed(self, now: float) -> int:
        """How many beats did not come since it was heard."""
        return 0 if self.heard is None or not self.pause else max(1, round((now - self.heard) / self.pause))


class Servers:
    """All that were ever named."""

    def __init__(self) -> None:
        self.of: dict[str, Known] = {}
        self._leased: OrderedDict[str, None] = OrderedDict()
        """Those that live, in the order in which their leases end."""
        self._loads = Loads()
        self._stale: dict[str, None] = {}
        """Servers that are not in their place among the loads."""

    def heard(self, here: Here, now: float) -> Known:
        """A server says that it lives; whoever has ended does not come back by that."""
        known = self.of.get(here.server)
        if known is None:
            known = self.of[here.server] = Known(here.server)
        if known.heard is not None:
            known.pause = 0.9 * known.pause + 0.1 * (now - known.heard) if known.pause else now - known.heard
        if known.heard is None or not known.is_living or known.host != here.host:
            self._stale[here.server] = None
        known.heard = now
        known.host, known.address = here.host, here.address
        known.peer_address = here.peer_address or here.address
        if known.may_return:
            known.has_ended = known.may_return = False
        known.is_living = not known.has_ended
        if known.is_living:
            self._leased[here.server] = None
        return known

    def lease(self, known: Known, until: float) -> None:
        """A lease of it may hold until then."""
        known.held_until = max(known.held_until, until)
        self._leased[known.name] = None
        self._leased.move_to_end(known.name)

    def spare(self, seconds: float) -> None:
        """Nobody could be heard for so long: whoever lives has as much more time, and had no lease."""
        for name in self._leased:
            self.of[name].held_until += seconds
            self.of[name].answered_at += seconds
            self.of[name].leased_from = None

    def named(self, name: str, held_until: float) -> Known:
        """A group names a server that may not have said anything yet, or a disk that was restored, which no
        server has had."""
        if name not in self.of and is_restored(name):
            self.of[name] = Known(name, is_living=False, has_ended=True)
        elif name not in self.of:
            self.of[name] = Known(name, held_until=held_until)
            self._leased[name] = None
        return self.of[name]

    def away(self, name: str) -> None:
        """It was drained, and has no copies: its process has ended unless it is heard."""
        if name not in self.of:
            self.of[name] = Known(name, is_living=False, has_ended=True, may_return=True)

    def ended(self, name: str) -> bool:
        """Its process has ended: whether that is news. Of a server that has nothing, and was never heard, it
        is none: whoever led before was told."""
        known = self.of.get(name)
        if known is None:
            return False
        is_news = known.is_living
        known.has_ended, known.is_living, known.may_return = True, False, False
        self._leased.pop(name, None)
        self._stale[name] = None
        return is_news

    def given_up(self, name: str) -> None:
        """An operator has said that it has ended: it lives again if it is heard."""
        self.of[name].may_return = True

    def drained(self, name: str, is_drained: bool, held_until: float) -> None:
        """It is to have no copies, or may have some again."""
        self.named(name, held_until).is_drained = is_drained
        self._stale[name] = None

    def gone(self, now: float) -> list[Known]:
        """Those whose last lease is over with this moment."""
        found = []
        while self._leased:
            known = self.of[next(iter(self._leased))]
            if now <= known.held_until:
                break
            del self._leased[known.name]
            known.is_living, known.leased_from = False, None
            self._stale[known.name] = None
            found.append(known)
        return found

    def forget(self, name: str) -> None:
        """It is known no more."""
        del self.of[name]
        self._leased.pop(name, None)
        self._loads.remove(name)
        self._stale.pop(name, None)

    def may_act(self, name: str, now: float) -> bool:
        """Whether a lease of it may hold."""
        known = self.of[name]
        return not known.has_ended and now <= known.held_until

    def lives(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.of and self.of[name].is_living

    @property
    def living(self) -> list[Known]:
        """Those that are there."""
        return [each for each in self.of.values() if each.is_living]

    # --- what they have ---

    def has(self, name: str, bucket: str) -> None:
        """It is to have a copy."""
        self.of[name].copies[bucket] = None
        self._stale[name] = None

    def has_not(self, name: str, bucket: str) -> None:
        """It has no copy any more."""
        if self.of[name].copies.pop(bucket, bucket) is None:
            self._stale[name] = None

    @property
    def loads(self) -> Loads:
        """Those that may have more, by how many copies they have."""
        for name in self._stale:
            known = self.of[name]
            if known.may_have_more:
                self._loads.put(name, known.host, len(known.copies))
            else:
                self._loads.remove(name)
        self._stale.clear()
        return self._loads

    def place(self, members: Collection[str], avoid: Collection[str]) -> str | None:
        """Where another copy goes: to a host that has none of ``members`` where there is one, to the server
        that has the fewest."""
        hosts = {self.of[each].host for each in members if each in self.of}
        return self.loads.place(hosts, {*members, *avoid})
