"""The asynchronous half of a parameter server: updates that are applied as they come, each once.

Knows: sessions and the number of each one's newest update, versions of shards, the queue, markers. Does not
know: where numbers are and how they are added, sockets, time, whole-set evaluations (`shard.Server`, whose
vectors these are).

    an update of session s whose last number is n          what happens
    another run's; of a session that is not living         refused
    number n, answered                                     the same answer again
    number n, waiting; number below n                      nothing (its answer comes, or has been had)
    number above n + 1                                     refused: ``expects n+1``
    with the marker of a checkpoint that nobody began      refused
    n + 1, malformed, not finite, of a kind unfit          refused; n + 1 is used up
    n + 1, no room                                         what waits is applied at once
    n + 1, and there still is none                         refused, to be sent again: ``busy``
    n + 1, without shards                                  `Applied`: its marker is in
    n + 1, a part of it, and others are missing            kept (`parts`), outside of the queue
    n + 1, the last part                                   as an update that came whole
    n + 1                                                  queued

    the queue                                              what happens
    drain                                                  all of a shard in one pass, then `Applied` to each
    drain, too stale, policy *drop*                        refused; the number is used up
    drain, policy *wait*                                   what would make others too stale stays
    behind its marker, and others owe theirs               stays until the shards are frozen
    its session ends                                       applied at once, answered to nobody
    its session ends, and it is behind its marker          forgotten: it is in no shard, and nobody said so
    its session ends, and parts of it are missing          the same
    all living sessions' markers are in                    what is not behind one is applied at once; the
                                                           shards are copied (frozen)

A checkpoint's state is a copy of the weights and of what the rule keeps: so much memory more, until the
coordinator has taken it, and never two of them. A session that begins while one is under way is not in it.

A session is one incarnation of a replica, and no number of it is kept once it is over. It may be several
ranks, each with a connection of its own: any of them pulls, an update is of all that have some of its shards,
and its answer goes to the first. A pull is answered at once from what is applied. The queue is bounded in
bytes, so memory is: an update is taken where it fits, or where nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from cotswold.optim.schedule import BySamples
from cotswold.optim.updates import Deltas, Rule
from cotswold.server.admission import Admission, Factors, Product, RefusedError, UpdateArithmetic
from cotswold.server.freezing import Frozen, part_of
from cotswold.server.messages import (
    COORDINATOR,
    Applied,
    Order,
    Ordered,
    PulledNewer,
    PullFrozen,
    PullNewer,
    Send,
    ToUpdates,
    Update,
    UpdateRefused,
)
from cotswold.server.ranges import are_apart, joined, without
from cotswold.server.ranks import is_of
from cotswold.server.sessions import Session, Waiting, may_say, said_of
from cotswold.server.shard import Arithmetic, Server, Values
from cotswold.server.staleness import Histogram, Staleness


@dataclass(frozen=True)
class Room:
    """How many bytes of updates may wait; one that finds nothing waiting is taken, whatever its size."""

    shard_bytes: int
    """For one shard."""
    all_bytes: int
    """For all of a server."""


@dataclass(frozen=True)
class Asynchronous:
    """What the shards of a run are told once."""

    run: str
    name: str
    """The vector that updates change."""
    rule: Rule
    columns: Mapping[str, int]
    """Of each tensor: numbers a row."""
    item_bytes: int
    room: Room
    staleness: Staleness = field(default_factory=Staleness)
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters have norm 1: rows of matrices."""
    schedule: BySamples = field(default_factory=BySamples)
    """How the rate of an update follows from its version's and from the place of its first sample."""
    products: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What makes gradients of factors for tensors that are no matrices, in numbers."""


_Pushed = tuple[float, Values | Factors[Values]]


class Updates(Generic[Values]):
    """Updates of the shards of ``server``."""

    def __init__(
        self,
        server: Server[Values],
        settings: Asynchronous,
        arithmetic: Arithmetic[Values],
        updates: UpdateArithmetic[Values],
        versions: Mapping[int, int] | None = None,
        products: Mapping[str, Product[Values]] | None = None,
    ) -> None:
        self._server, self.settings = server, settings
        self._arithmetic, self._updates, self._products = arithmetic, updates, dict(products or {})
        self._admission = Admission(
            server.shards, settings.columns, settings.rule, arithmetic, updates, products
        )
        self.versions = dict(versions or dict.fromkeys(server.numbers, 0))
        """How many updates each shard has had."""
        self.staleness = {number: Histogram() for number in server.numbers}
        self.refused: dict[str, int] = {}
        """How many updates, by the first word of the reason."""
        self.taken = 0
        """How many updates, and parts of such, were taken as they came."""
        self.frozen: Frozen[Values] | None = None
        """The state at the newest checkpoint, until the coordinator has taken it."""
        self._frozen = 0
        self._order = Order(0, (), (), 0, 0)
        self._rates: dict[int, float] = {}
        self._sessions: dict[int, Session[Values]] = {}
        self._ended: dict[int, Session[Values]] = {}
        """With the newest order."""
        self._gone: dict[int, Session[Values]] = {}
        """That ended since a checkpoint began which is not frozen."""
        self._queue: list[Waiting[Values]] = []
        self._bytes: dict[int, int] = dict.fromkeys(server.numbers, 0)
        """That wait, by shard."""
        self._is_crowded = False
        """Whether somebody found no room since the last pass."""

    @property
    def waiting(self) -> int:
        """Bytes of updates that wait."""
        return sum(self._bytes.values())

    @property
    def queued(self) -> int:
        """Updates that wait."""
        return len(self._queue)

    @property
    def replicas(self) -> dict[str, Histogram]:
        """The staleness of what each living session had applied here, by its name."""
        return {session.name: session.staleness for session in self._sessions.values()}

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The names of sessions that make updates of others wait: by a marker that they owe, or because they
        compute from what these would make too stale."""
        checkpoint = self._order.checkpoint
        if checkpoint > self._frozen:
            return tuple(each.name for each in self._sessions.values() if each.checkpoint < checkpoint)
        found = {key for each in self._queue for key in self._aged(each, self.versions)}
        return tuple(session.name for key, session in self._sessions.items() if key in found)

    def replica(self, sender: str, message: ToUpdates) -> str:
        """The replica that says something, where one of its ranks does; otherwise the sender."""
        session = self._sessions.get(message.session) if isinstance(message, Update | PullNewer) else None
        return session.name if session is not None and is_of(sender, session.name) else sender

    def receive(self, sender: str, message: ToUpdates) -> list[Send]:
        """What a message leads to; orders are the coordinator's alone."""
        match message:
            case Update():
                return self._update(sender, message)
            case PullNewer():
                return [Send(sender, self._pull(sender, message))]
            case PullFrozen() if sender == COORDINATOR:
                part = part_of(
                    self.frozen, self._server.name, self._server.numbers, message, self._arithmetic
                )
                return [Send(sender, part)]
            case Order() if sender == COORDINATOR:
                return self._ordered(message)
            case _:
                return []

    # --- updates come ---

    def _update(self, sender: str, update: Update) -> list[Send]:
        session = self._living(sender, update)
        if isinstance(session, str):
            return [Send(sender, self._refusal(update, session))]
        if update.number <= session.last:
            answer = session.answer if update.number == session.last else None
            return [] if answer is None else [Send(session.name, answer)]
        if update.number != session.last + 1:
            return [Send(session.name, self._refusal(update, f"expects {session.last + 1}"))]
        if update.checkpoint > self._order.checkpoint:
            reason = f"marker: checkpoint {update.checkpoint} was not begun"
            return [Send(session.name, self._refusal(update, reason, again=True))]
        if not update.shards and not update.parts:
            return self._marked(session, update)
        return self._admitted(session, update)

    def _admitted(self, session: Session[Values], update: Update) -> list[Send]:
        """The next update of a session, or a part of it, is queued or refused."""
        sends: list[Send] = []
        try:
            self._admission.check(update, self._rates)
            whole = self._whole(session, update)
            if whole is None:
                return []
            busy = self._busy(whole[0], session)
            if busy is not None:
                sends = self.drain()
                busy = self._busy(whole[0], session)
            if busy is not None:
                return [*sends, Send(session.name, self._refusal(update, busy, again=True))]
            values = whole[1] if update.parts else self._admission.read(update, self._weights)
        except RefusedError as error:
            session.last, session.answer = update.number, self._refusal(update, str(error))
            session.parts.clear()
            if are_apart(update.samples):
                session.missed = joined(session.missed, update.samples)
            return [*sends, Send(session.name, session.answer)]
        self.taken += not update.parts
        self._wait(session, replace(whole[0], buffers=()), values)  # what values need of them these keep
        return sends

    def _whole(
        self, session: Session[Values], update: Update
    ) -> tuple[Update, list[Values | Factors[Values]]] | None:
        """An update with what was read of its parts, which is nothing where it came whole; None while parts
        are missing. Raises RefusedError."""
        if not update.parts:
            return update, []
        if session.parts.lacks(update):
            if self.settings.name not in self._server.vectors:
                return None  # it is sent again
            session.parts.put(update, self._admission.read(update, self._weights))
            self.taken += 1
        return session.parts.whole()

    def _wait(self, session: Session[Values], update: Update, values: list[Values | Factors[Values]]) -> None:
        numbers, checkpoint = self._admission.size(update), max(update.checkpoint, session.checkpoint)
        waiting = Waiting(update.session, update, self._rate(update), values, numbers, checkpoint)
        session.last, session.answer = update.number, None
        session.parts.clear()
        self._queue.append(waiting)
        self._count(waiting, 1)

    def _rate(self, update: Update) -> float:
        if isinstance(self.settings.rule, Deltas):
            return 1.0
        greatest = self._rates[update.rate]
        return self.settings.schedule.rate(greatest, update.samples[0][0]) if update.samples else greatest

    def _living(self, sender: str, message: Update | PullNewer) -> Session[Values] | str:
        """The sender's session, or why it has none: that of a replica of which it is a rank, too."""
        if message.run != self.settings.run:
            return f"run: it is meant for {message.run!r:.60}, and this is {self.settings.run!r}"
        session = self._sessions.get(message.session)
        if session is None or not may_say(message, sender, session.name):
            return f"session: {message.session} is no living session of {sender!r:.60}"
        return session

    def _refusal(self, update: Update, reason: str, *, again: bool = False) -> UpdateRefused:
        kind = reason.split()[0].rstrip(":")
        self.refused[kind] = self.refused.get(kind, 0) + 1
        return UpdateRefused(update.session, self._server.name, update.number, reason, again)

    def _busy(self, update: Update, session: Session[Values]) -> str | None:
        """Why an update must come again; None where there is room for it.

        What is behind a marker gets half of the room, so that it keeps nobody's marker back.
        """
        if self.settings.name not in self._server.vectors:
            return f"busy: there is no vector {self.settings.name!r} yet"
        is_behind = max(update.checkpoint, session.checkpoint) > self._frozen
        share = 2 if is_behind else 1
        ahead = self._queue if is_behind else self._ahead
        room, item_bytes = self.settings.room, self.settings.item_bytes
        bytes_more = {number: count * item_bytes for number, count in self._admission.size(update).items()}
        taken = {number for each in ahead for number in each.numbers}
        if is_behind:
            taken.update(bytes_more)
        full = [
            number
            for number, more in bytes_more.items()
            if number in taken and self._bytes[number] + more > room.shard_bytes // share
        ]
        all_more = sum(bytes_more.values())
        if full or ((ahead or is_behind) and self.waiting + all_more > room.all_bytes // share):
            self._is_crowded = self._is_crowded or not is_behind
            return f"busy: {self.waiting} bytes of updates wait"
        return None

    @property
    def _ahead(self) -> list[Waiting[Values]]:
        """What waits, and is not behind the marker of a checkpoint that is not frozen."""
        return [each for each in self._queue if each.checkpoint <= self._frozen]

    def _marked(self, session: Session[Values], update: Update) -> list[Send]:
        session.last, session.checkpoint = update.number, max(session.checkpoint, update.checkpoint)
        session.answer = self._applied(update)
        return [Send(session.name, session.answer), *self._freeze()]

    def _applied(self, update: Update) -> Applied:
        versions = tuple(self.versions[number] for number in update.shards)
        return Applied(
            update.session, self._server.name, update.number, update.shards, versions, self.waiting
        )

    def _count(self, waiting: Waiting[Values], sign: int) -> None:
        for number, count in waiting.numbers.items():
            self._bytes[number] += sign * count * self.settings.item_bytes
            assert self._bytes[number] >= 0, f"shard {number} has less than nothing waiting"

    # --- updates are applied ---

    def drain(self) -> list[Send]:
        """Apply what waits, of each shard in one pass, and answer. To be called whenever there is time."""
        ready: list[Waiting[Values]] = []
        ahead = dict(self.versions)
        queue = self._ahead
        if self.settings.staleness.policy == "wait":
            queue = sorted(queue, key=lambda each: -max(self._staleness(each.update)))
        for each in queue:
            if self._is_crowded or not self._ages_others(each, ahead):
                ready.append(each)
                for number in each.update.shards:
                    ahead[number] += 1
        self._is_crowded = False
        return self._apply(ready)

    def _ages_others(self, waiting: Waiting[Values], versions: Mapping[int, int]) -> bool:
        """Whether applying it would make what another session computes too stale."""
        return next(self._aged(waiting, versions), None) is not None

    def _aged(self, waiting: Waiting[Values], versions: Mapping[int, int]) -> Iterator[int]:
        """The sessions whose computing it would make too stale."""
        policy = self.settings.staleness
        if policy.policy != "wait":
            return
        for key, session in self._sessions.items():
            if key != waiting.session and session.pulled_for == session.last + 1:
                for number in waiting.update.shards:
                    base = session.bases.get(number)
                    if base is not None and versions[number] + 1 - base > policy.bound:
                        yield key
                        break

    def _apply(self, ready: Sequence[Waiting[Values]]) -> list[Send]:
        """These, in order, out of the queue."""
        if not ready:
            return []
        gone = set(ready)
        self._queue = [each for each in self._queue if each not in gone]
        pushes: dict[int, list[_Pushed[Values]]] = {number: [] for number in self._server.numbers}
        for each in ready:
            self._count(each, -1)
            self._take(each, pushes)
        for place, shard in enumerate(self._server.shards):
            if pushes[shard.number]:
                self._updates.apply(
                    self.settings.rule,
                    self._vector(self.settings.name)[place],
                    [self._vector(name)[place] for name in self.settings.rule.keeps],
                    pushes[shard.number],
                    self.settings.columns[shard.tensor],
                    shard.tensor in self.settings.unit_norm and shard.tensor not in self._products,
                )
                if shard.tensor in self.settings.unit_norm and shard.tensor in self._products:
                    weights = self._vector(self.settings.name)[place]
                    self._products[shard.tensor].scale_to_norm_1(weights)
        return [send for each in ready for send in self._answered(each)]

    def _take(self, waiting: Waiting[Values], pushes: Mapping[int, list[_Pushed[Values]]]) -> None:
        """Put an update among those of each shard's pass, or drop it."""
        update = waiting.update
        stale = self._staleness(update)
        waiting.is_dropped = any(self.settings.staleness.scale(each) == 0 for each in stale)
        if waiting.is_dropped:
            return
        session = self._sessions.get(waiting.session) or self._ended[waiting.session]
        for number, each, values in zip(update.shards, stale, waiting.values, strict=True):
            factor = waiting.rate * update.scale * self.settings.staleness.scale(each)
            pushes[number].append((factor, values))
            self.staleness[number].add(each)
            session.staleness.add(each)
            self.versions[number] += 1

    def _staleness(self, update: Update) -> list[int]:
        """Of each of its shards."""
        pairs = zip(update.shards, update.versions, strict=True)
        return [max(0, self.versions[number] - version) for number, version in pairs]

    def _answered(self, waiting: Waiting[Values]) -> list[Send]:
        update = waiting.update
        session = self._sessions.get(waiting.session) or self._ended[waiting.session]
        if waiting.is_dropped:
            bound = self.settings.staleness.bound
            session.answer = self._refusal(update, f"stale: more than {bound} updates came before it")
            session.missed = joined(session.missed, update.samples)
        else:
            session.samples = joined(session.samples, update.samples)
            session.answer = self._applied(update)
        return [Send(session.name, session.answer)] if waiting.session in self._sessions else []

    @property
    def _weights(self) -> Mapping[int, Values]:
        """By shard."""
        return dict(zip(self._server.numbers, self._vector(self.settings.name), strict=True))

    def _vector(self, name: str) -> list[Values]:
        """A vector's shards; what a rule keeps is zeros at first."""
        vectors = self._server.vectors
        if name not in vectors:
            assert name in self.settings.rule.keeps, f"vector {name!r} was written before updates came"
            vectors[name] = [
                self._arithmetic.zeros(shard.stop - shard.start) for shard in self._server.shards
            ]
        return vectors[name]

    # --- pulls ---

    def _pull(self, sender: str, pull: PullNewer) -> PulledNewer:
        session = self._living(sender, pull) if pull.session else None
        error = session if isinstance(session, str) else self._mistake(pull)
        if error is not None:
            return PulledNewer(pull.session, self._server.name, pull.number, (), (), (), error)
        if isinstance(session, Session) and pull.number == session.last + 1:
            if pull.number > session.pulled_for:
                session.pulled_for, session.bases = pull.number, {}
            for number in pull.shards:  # asked again, it may have had the first answer
                session.bases.setdefault(number, self.versions[number])
        place = {number: place for place, number in enumerate(self._server.numbers)}
        newer = tuple(
            number
            for number, version in zip(pull.shards, pull.versions, strict=True)
            if self.versions[number] > version
        )
        weights = self._vector(self.settings.name)
        return PulledNewer(
            pull.session,
            self._server.name,
            pull.number,
            newer,
            tuple(self.versions[number] for number in newer),
            tuple(self._arithmetic.write(weights[place[number]]) for number in newer),
        )

    def _mistake(self, pull: PullNewer) -> str | None:
        if pull.run != self.settings.run:
            return f"run: it is meant for {pull.run!r:.60}, and this is {self.settings.run!r}"
        strange = sorted(set(pull.shards) - self.versions.keys())
        if strange:
            return f"shard: shards {strange} are not here"
        if len(set(pull.shards)) < len(pull.shards):
            return "shard: it names a shard twice"
        if len(pull.versions) != len(pull.shards):
            return f"length: {len(pull.versions)} versions of {len(pull.shards)} shards"
        if self.settings.name not in self._server.vectors:
            return f"vector: there is no vector {self.settings.name!r} yet"
        return None

    # --- orders ---

    def _ordered(self, order: Order) -> list[Send]:
        sends: list[Send] = []
        if order.number < self._order.number:
            return []
        if order.number > self._order.number:
            self._order, self._rates = order, dict(order.rates)
            if self.frozen is not None and self.frozen.checkpoint <= order.taken:
                self.frozen = None
            sends = [*self._live(dict(order.sessions)), *self._freeze()]
        cut = () if self.frozen is None else self.frozen.samples
        samples = said_of({**self._ended, **self._sessions})
        answer = Ordered(order.number, self._server.name, samples, self._frozen, self.waiting, cut)
        return [*sends, Send(COORDINATOR, answer)]

    def _live(self, names: Mapping[int, str]) -> list[Send]:
        """These sessions live; what others have waiting is applied, unless it is behind a marker."""
        for number, name in names.items():  # whoever is new owes no marker: it has sent nothing
            self._sessions.setdefault(number, Session(name, checkpoint=self._order.checkpoint))
        self._ended = {
            number: self._sessions.pop(number) for number in list(self._sessions) if number not in names
        }
        if self._order.checkpoint > self._frozen:
            self._gone.update(self._ended)
        sends = self._apply([each for each in self._ahead if each.session in self._ended])
        for ended in self._ended.values():
            ended.parts.clear()
        for each in [each for each in self._queue if each.session in self._ended]:
            self._queue.remove(each)
            self._count(each, -1)
        below = ((0, self._order.settled),)
        for session in (*self._sessions.values(), *self._ended.values()):
            session.samples = without(session.samples, below)
            session.missed = without(session.missed, below)
        return sends

    # --- checkpoints ---

    def _freeze(self) -> list[Send]:
        """Keep the state of a checkpoint, once all markers are in."""
        checkpoint = self._order.checkpoint
        owed = any(session.checkpoint < checkpoint for session in self._sessions.values())
        if checkpoint <= self._frozen or owed:
            return []
        assert self.frozen is None, "the coordinator takes a checkpoint before it begins the next"
        sends = self._apply(self._ahead)  # all of it came before the markers
        names = (self.settings.name, *self.settings.rule.keeps)
        self.frozen = Frozen(
            checkpoint,
            {
                name: [self._arithmetic.combine([(1.0, each)], None) for each in self._vector(name)]
                for name in names
            },
            tuple(self.versions[number] for number in self._server.numbers),
            said_of({**self._gone, **self._sessions}),
        )
        self._frozen, self._gone = checkpoint, {}
        return sends
