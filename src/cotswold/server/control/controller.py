"""A controller: who has copies of which bucket in which term; message in, messages and wishes out.

Knows: the groups, servers and their leases, elections, what is to be written down. Does not know: what
buckets hold, sockets, clocks, where the state is kept.

    what happens                                              what the leader does
    Here, claiming nothing that the map does not say          `Leased`
    Here, claiming more                                       `Assign`, until it does not; no lease meanwhile
    a server is gone, and was a primary                       an election (`electing`)
    the process of a secondary or a learner has ended         a group without it
    a primary is silent to all of its secondaries, or they    it is fenced, and an election
      to it, though it lives
    a primary that lives says that a copy is silent           a group without it: a copy that only controllers
                                                              do not hear is one
    a member was fenced, and nothing came of it               an election
    every member of a group is gone                           their disks are asked (`reviving`)
    a learner has caught up                                   a group that has it as a secondary
    a bucket has too few copies, and there is a server        a group that has it as a learner
    a group is written down                                   `Assign` to whom it names, and whom it named

A group counts once it is written down: each is a new term, put only if the one before stands there and this
controller leads. Nothing is said of it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cotswold.server.asked import Event
from cotswold.server.control.complaints import Complaints
from cotswold.server.control.electing import Election
from cotswold.server.control.leading import Leading, Read, Wish
from cotswold.server.control.map import Map
from cotswold.server.control.reviving import Revival
from cotswold.server.control.servers import Servers
from cotswold.server.messages import (
    Assign,
    Assigned,
    Caught,
    Create,
    Describe,
    Described,
    Ended,
    Fenced,
    Find,
    Found,
    FoundSaved,
    Group,
    Here,
    Leased,
    NotLeading,
    Send,
    Silent,
    TakeOver,
)

FromServers = (
    Here | Assigned | Fenced | FoundSaved | Caught | Silent | TakeOver | Ended | Find | Create | Describe
)
_EVERYTHING = ""
"""With which all keys begin."""


MOST_COPIES = 5


@dataclass(frozen=True)
class Control:
    """How buckets are controlled."""

    copies: int = 3
    """Of each bucket, the primary included; fewer while there are fewer servers."""
    lease_seconds: float = 1.0
    beat_seconds: float = 0.25
    """How often a leader says that it leads."""
    leader_seconds: float = 1.0
    """After which another may lead."""
    retry_seconds: float = 0.25
    election_seconds: float = 0.2
    """After which an election does without those who say nothing."""
    judging_seconds: float = 0.2
    """For which complaints are gathered, before it is judged who is to blame."""
    avoid_seconds: float = 10.0
    """For which a server gets no copy of a bucket again, after it was silent to its primary."""
    disk_seconds: float = 3.0
    """After which a bucket whose members have all ended does without the disks that are not there."""
    revive_seconds: float = 30.0
    """After which members that are silent, all of them, are taken for lost with what they had in memory."""

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= MOST_COPIES:
            raise ValueError(f"{self.copies} copies; a bucket has 1 to {MOST_COPIES}")


class Controller:
    """One of the controllers."""

    def __init__(self, name: str, control: Control, now: float) -> None:
        self.name, self.control = name, control
        self.leading = Leading(
            name, now, beat_seconds=control.beat_seconds, leader_seconds=control.leader_seconds
        )
        self._map = Map()
        self.servers = Servers()
        self.events: list[Event] = []
        """Since they were taken."""
        self._is_loaded = False
        self._since = now
        """When it began to lead."""
        self._asking: Wish | None = None
        """What the state was asked for last, until that is answered."""
        self._untold: dict[tuple[str, str], float] = {}
        """(server, bucket) where the newest group is not known, and when it was told last."""
        self._elections: dict[str, Election] = {}
        self._complaints: dict[str, Complaints] = {}
        self._short: dict[str, None] = {}
        """Buckets that may have too few copies, in the order in which they are looked at."""
        self._avoided: dict[tuple[str, str], float] = {}
        """(bucket, server), until when."""

    # --- the state ---

    def wish(self, now: float) -> Wish | None:
        """What is wanted of the state next; None while the last is not answered, or nothing is."""
        if self._asking is not None:
            return None
        self._asking = self.leading.wish(now)
        if self._asking is None and self.leading.leads(now):
            if not self._is_loaded:
                self._asking = Read(_EVERYTHING)
            else:
                self._asking = self._map.transaction(self.leading.key)
        return self._asking

    def read(self, items: dict[str, str], now: float) -> list[Send]:
        """What was read."""
        asked, self._asking = self._asking, None
        if asked == Read(_EVERYTHING):
            return self._loaded(items, now)
        self.leading.read(items, now)
        return []

    def unread(self) -> list[Send]:
        """What was to be read was not."""
        self._asking = None
        return []

    def transacted(self, is_done: bool | None, now: float) -> list[Send]:
        """Whether what was to be put was put; None where that is not known."""
        self._asking = None
        if self._map.is_asking:
            return self._written(is_done, now)
        if self.leading.transacted(is_done, now):
            self._begin(now)
        return []

    def _begin(self, now: float) -> None:
        """It leads from now on, and knows nothing yet."""
        self._is_loaded, self._since = False, now
        self._map, self.servers = Map(), Servers()
        for each in (self._untold, self._elections, self._complaints, self._short):
            each.clear()
        self._note("leads", self.name, f"controller {self.name} leads, epoch {self.leading.epoch}")

    def _loaded(self, items: dict[str, str], now: float) -> list[Send]:
        if not self.leading.leads(now):
            return []
        self._is_loaded = True
        self._map.load(items)
        for bucket, group in self.groups.items():
            self._count(None, group)
            self._short[bucket] = None
        return self._tell(self.groups, now)

    def _written(self, is_done: bool | None, now: float) -> list[Send]:
        if not is_done:
            self._map.in_doubt()
            self.leading.step_down()  # it reads again what is so, if it leads again
            return []
        done = self._map.done()
        for old, group in done:
            self._count(old, group)
            self._elections.pop(group.bucket, None)
            self._complaints.pop(group.bucket, None)
            self._short[group.bucket] = None
            self._changed(old, group)
            for server in (*group.everybody, *(() if old is None else old.everybody)):
                if not self.servers.of[server].has_ended:
                    self._untold[server, group.bucket] = float("-inf")
        return self._tell([group.bucket for _, group in done], now)

    def _count(self, old: Group | None, new: Group) -> None:
        for group, there in ((old, False), (new, True)):
            for name in () if group is None else group.everybody:
                copies = self.servers.named(name, self._since + self.control.lease_seconds).copies
                (copies.add if there else copies.discard)(new.bucket)

    def _is_settled(self, bucket: str) -> bool:
        """Whether nothing else is under way for a bucket."""
        return not self._map.is_moving(bucket) and bucket not in self._elections

    def leads(self, now: float) -> bool:
        """Whether it leads, and has read what there is."""
        return self._is_loaded and self.leading.leads(now)

    @property
    def groups(self) -> Mapping[str, Group]:
        """As they are written down."""
        return self._map.groups

    @property
    def unsettled(self) -> set[str]:
        """Buckets of which the group may be another soon."""
        return {*self._map.moving, *self._elections, *self._complaints}

    # --- what it is asked for ---

    def create(self, wanted: Create, now: float) -> bool:
        """Give new buckets to the servers that are there, evenly; whether there are enough, and it leads."""
        living = sorted(self.servers.living, key=lambda each: each.name)
        if not self.leads(now) or len(living) < wanted.servers:
            return False
        self._map.describe(wanted.run, wanted.description)
        loads = dict.fromkeys((each.name for each in living), 0)
        leads = dict(loads)
        for bucket in wanted.buckets:
            if self._map.is_known(bucket):
                continue
            members: list[str] = []
            while len(members) < self.control.copies:
                place = self.servers.place(members, (), loads)
                if place is None:
                    break
                members.append(place.name)
                loads[place.name] += 1
            members.sort(key=lambda name: leads[name])
            leads[members[0]] += 1
            self._map.put(Group(bucket, 1, members[0], tuple(members[1:])))
        return True

    def take_events(self) -> list[Event]:
        """What has happened since they were taken last."""
        events, self.events = self.events, []
        return events

    # --- what it hears ---

    def receive(self, sender: str, message: FromServers, now: float) -> list[Send]:
        """What a message leads to."""
        if not self.leads(now):
            told = NotLeading(self.leading.epoch, self.leading.leader)
            # servers tell all controllers, and need not hear it
            return [Send(sender, told)] if isinstance(message, Find | Create) else []
        match message:
            case Here() if message.server == sender:
                return self._here(message, now)
            case Assigned() if message.server == sender:
                group = self.groups.get(message.bucket)
                if group is None or message.term >= group.term:
                    self._untold.pop((sender, message.bucket), None)
            case Fenced() if message.server == sender:
                election = self._elections.get(message.bucket)
                if election is not None:
                    election.answered(message)
                    return self._elect(election, now)
            case FoundSaved() if message.server == sender:
                election = self._elections.get(message.bucket)
                if election is not None and election.revival is not None:
                    election.revival.heard(message)
                    return self._elect(election, now)
            case Caught() | Silent() | TakeOver() if message.server == sender:
                return self._proposed(sender, message, now)
            case Ended():
                if self.servers.ended(message.server):
                    self._note("lost", message.server, f"{message.server} ended: {message.why}")
                    return self._lost(message.server, now)
            case Find():
                return [Send(sender, self._found(message))]
            case Create():
                self.create(message, now)
            case Describe():
                return [Send(sender, Described(message.run, self._map.runs.get(message.run, "")))]
            case _:
                pass
        return []

    def _here(self, here: Here, now: float) -> list[Send]:
        is_new = not self.servers.lives(here.server)
        known = self.servers.heard(here)
        if known.has_ended:
            return []
        if is_new:
            self._note("joined", here.server, f"{here.server} is there, on {here.host}")
            known.held_until = max(
                known.held_until, now + self.control.lease_seconds
            )  # it is not gone at once
            self._short.update(dict.fromkeys(self.groups))
            for bucket in sorted(known.copies):
                self._untold[here.server, bucket] = float("-inf")
        sends: list[Send] = []
        for bucket, term in here.fenced:  # by a leader that was, before it could decide
            group = self.groups.get(bucket)
            if group is not None and group.term < term and self._is_settled(bucket):
                sends += self._hold_election(group, "", now)
        stale = [bucket for bucket, term in here.leads if not self._may_lead(here.server, bucket, term)]
        for bucket in stale:
            self._untold.setdefault((here.server, bucket), float("-inf"))
        is_fenced = any(
            each.removed == here.server and here.server not in each.answers
            for each in self._elections.values()
        )
        if stale or is_fenced:
            return [*sends, *self._tell([], now)]
        known.held_until = max(known.held_until, now + self.control.lease_seconds)
        leased = Leased(self.leading.epoch, here.server, here.number, self.control.lease_seconds)
        return [*sends, Send(here.server, leased)]

    def _may_lead(self, server: str, bucket: str, term: int) -> bool:
        group = self.groups.get(bucket)
        return group is not None and group.primary == server and term <= group.term

    def _found(self, find: Find) -> Found:
        groups = tuple(self._map.newer(dict(find.terms)))
        primaries = {each.primary for each in groups}
        addresses = [(each.name, each.address) for each in self.servers.of.values() if each.name in primaries]
        return Found(groups, tuple(addresses))

    def _proposed(self, sender: str, message: Caught | Silent | TakeOver, now: float) -> list[Send]:
        group = self.groups.get(message.bucket)
        if group is None or message.term != group.term:
            if group is not None:
                self._untold.setdefault((sender, message.bucket), float("-inf"))
            return []
        if isinstance(message, Caught):
            if (
                self._is_settled(group.bucket)
                and sender == group.primary
                and message.learner in group.learners
            ):
                learners = tuple(each for each in group.learners if each != message.learner)
                members = (*group.secondaries, message.learner)
                self._map.put(replace(group, term=group.term + 1, secondaries=members, learners=learners))
            return []
        complaints = self._complaints.setdefault(group.bucket, Complaints(group.term, now))
        complaints.hear(sender, message, group)
        return []

    # --- time ---

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each retry."""
        if not self.leads(now):
            return []
        sends: list[Send] = []
        for known in self.servers.gone(now):
            self._note(
                "lost", known.name, f"{known.name} has said nothing for {self.control.lease_seconds:g} s"
            )
            sends += self._lost(known.name, now)
        for election in list(self._elections.values()):
            sends += self._elect(election, now)
        for bucket, complaints in list(self._complaints.items()):
            if now - complaints.began >= self.control.judging_seconds:
                del self._complaints[bucket]
                sends += self._judge(bucket, complaints, now)
        self._fill(now)
        return [*sends, *self._tell([], now)]

    def _lost(self, name: str, now: float) -> list[Send]:
        """No lease of a server can hold: what it had is to be had by others."""
        sends: list[Send] = []
        if self.servers.of[name].has_ended:
            self._untold = {key: when for key, when in self._untold.items() if key[0] != name}
        for bucket in sorted(self.servers.of[name].copies):
            group = self.groups[bucket]
            if group.primary == name:
                sends += self._hold_election(group, "", now)
            elif self.servers.of[name].has_ended:  # else the primary knows whether it is there
                self._drop(group, {name})
        return sends

    def _drop(self, group: Group, names: set[str]) -> None:
        """A group without these, if nothing else is under way; it is looked at again otherwise."""
        if not self._is_settled(group.bucket):
            self._short[group.bucket] = None
            return
        secondaries = tuple(each for each in group.secondaries if each not in names)
        learners = tuple(each for each in group.learners if each not in names)
        self._map.put(replace(group, term=group.term + 1, secondaries=secondaries, learners=learners))

    def _judge(self, bucket: str, complaints: Complaints, now: float) -> list[Send]:
        """Who is to blame for silence in a group of which the primary lives."""
        group = self.groups[bucket]
        if complaints.term != group.term or not self._is_settled(bucket):
            return []
        if complaints.is_cut_off(group, {each for each in group.secondaries if self.servers.lives(each)}):
            return self._hold_election(group, group.primary, now)
        silent = complaints.silent(group)
        if silent and self.servers.of[group.primary].held_until - now > self.control.lease_seconds / 2:
            until = now + self.control.avoid_seconds
            self._avoided.update({(bucket, each): until for each in silent})
            self._drop(group, silent)
        return []

    def _fill(self, now: float) -> None:
        """Give buckets that have too few copies another, and take out who is gone."""
        self._avoided = {each: until for each, until in self._avoided.items() if until > now}
        for bucket in list(self._short):
            group = self.groups[bucket]
            if not self._is_settled(bucket):
                continue
            gone = {each for each in group.everybody if not self.servers.lives(each)}
            if group.primary in gone and not self.servers.may_act(group.primary, now):
                self._hold_election(group, "", now)
                continue
            ended = {each for each in group.everybody if self.servers.of[each].has_ended} - {group.primary}
            if ended:
                self._drop(group, ended)
                continue
            if group.learners or len(group.members) >= self.control.copies or group.primary in gone:
                del self._short[bucket]
                continue
            avoid = {server for name, server in self._avoided if name == bucket}
            place = self.servers.place(group.everybody, avoid, {})
            if place is not None and self.servers.lives(group.primary):
                self._map.put(replace(group, term=group.term + 1, learners=(place.name,)))
            elif not avoid:
                del self._short[bucket]  # looked at again when a server comes

    # --- elections ---

    def _hold_election(self, group: Group, removed: str, now: float) -> list[Send]:
        if group.bucket in self._elections:
            return []
        self._map.call_back(group.bucket)  # it is of the primary that was
        election = self._elections[group.bucket] = Election(group, now, removed)
        return self._elect(election, now)

    def _elect(self, election: Election, now: float) -> list[Send]:
        """Ask, and decide."""
        group = election.group
        if self._map.is_moving(group.bucket):
            return []
        if group != self.groups[group.bucket]:  # what was on its way has been written down meanwhile
            self._elections[group.bucket] = election = Election(
                self.groups[group.bucket], now, election.removed
            )
            group = election.group
        living = [each for each in group.members if self.servers.lives(each)]
        may_act = self.servers.may_act(group.primary, now)
        if not living and not may_act:
            return self._revive(election, now)
        election.revival = None
        decided = election.decided(living, may_act, now, self.control.election_seconds)
        if decided is None:
            return election.ask(living, self.leading.epoch, now, self.control.retry_seconds)
        self._map.put(decided)
        return []

    def _revive(self, election: Election, now: float) -> list[Send]:
        """Every member is gone: ask their disks, and decide."""
        revival = election.revival = election.revival or Revival(election.group, now)
        living = {each.name for each in self.servers.living}
        ended = {each for each in election.group.members if self.servers.of[each].has_ended}
        patience = self.control.disk_seconds, self.control.revive_seconds
        decided = revival.decided(living, ended, now, patience)
        if decided is None:
            return revival.ask(living, self.leading.epoch, now, self.control.retry_seconds)
        self._map.put(decided)
        return []

    # --- what is said ---

    def _tell(self, groups: Iterable[str], now: float) -> list[Send]:
        """Groups, to whom does not know them: secondaries first, who then wait for their primary."""
        for bucket in groups:
            for name in self.groups[bucket].everybody:
                self._untold[name, bucket] = float("-inf")
        sends: list[Send] = []
        late = now - self.control.retry_seconds
        for server, bucket in list(self._untold):
            if not self.servers.lives(server):
                continue
            if self._untold[server, bucket] <= late and bucket in self.groups:
                self._untold[server, bucket] = now
                sends.append(Send(server, Assign(self.leading.epoch, self.groups[bucket])))
        return sorted(sends, key=lambda each: _is_for_primary(each))

    def _changed(self, old: Group | None, new: Group) -> None:
        if old is not None and old.life != new.life:
            sentence = (
                f"{new.bucket}: every copy was lost; {new.primary} goes on from its disk, term {new.term}"
            )
            self._note("revived", new.primary, sentence)
        elif old is not None and old.primary != new.primary:
            self._note(
                "elected",
                new.primary,
                f"{new.bucket}: {new.primary} took over from {old.primary}, term {new.term}",
            )

    def _note(self, kind: str, name: str, sentence: str) -> None:
        self.events.append(Event(kind, name, sentence))


def _is_for_primary(send: Send) -> bool:
    return isinstance(send.message, Assign) and send.message.group.primary == send.to
