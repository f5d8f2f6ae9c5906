"""The asynchronous half of a parameter server: updates are applied as they arrive, each exactly once.

Knows: versions of shards, markers, the treatment of an update by its number, when the queue is applied. Does
not know: the storage and arithmetic of numbers, sockets, time, whole-set evaluations
(`shards.core.shard_server`, whose vectors these are). `paramserver.core.sessions` has the state of sessions,
`paramserver.core.update_queue` the queue, `paramserver.core.update_application` its application.

    an update of session s whose last number is n          action
    of another run; of a session that is not live          reject
    number n, answered                                     repeat the reply
    number n, queued; number below n                       ignore (the reply follows, or was received)
    number above n + 1                                     reject: ``expects n+1``
    with the marker of a checkpoint that was not begun     reject
    n + 1, all samples already applied here                reply `Applied` without applying them again
    n + 1, some samples already applied here               reject; n + 1 is used up
    n + 1, malformed, not finite, of an unfit kind         reject; n + 1 is used up
    n + 1, queue full                                      apply the queue at once
    n + 1, and it is still full                            reject with a request to retry: ``busy``
    n + 1, without shards, of a new checkpoint             reply `Applied`: its marker has arrived
    n + 1, a part of it, with others missing               keep it (`partial_update`), outside of the queue
    n + 1, the last part                                   as an update in one piece
    n + 1, without shards                                  reply `Applied`: no update follows from its pull
    n + 1                                                  queue it

    the queue                                              action
    drain                                                  apply all of a shard in one pass, then reply
    drain, too stale, policy *drop*                        reject; the number is used up
    drain, policy *wait*                                   keep updates that would make others too stale
    behind its marker, while others owe theirs             keep until the shards are frozen
    its session ends                                       apply at once, without a reply
    its session ends, and it is behind its marker          drop: no shard has it, no report contains it
    the markers of all live sessions have arrived          apply what is not behind one at once; copy
                                                           the shards (frozen)

    a coordinator state                                    action
    older than the newest                                  ignore
    begins a checkpoint before the last was taken          ignore: it is repeated
    begins a checkpoint before parameters were written     ignore: it is repeated
    the newest, again                                      repeat the acknowledgement
    newer                                                  end the sessions that it does not name; await
                                                           the markers of a new checkpoint

A checkpoint's state is a copy of the weights and of the rule's state vectors. It uses that much more memory
until the coordinator has taken it, and at most one exists. A session that begins during a checkpoint is not
in it. A pull is answered at once with the applied updates. The queue is bounded in bytes, so memory is
bounded: an update is accepted if it fits, or if the queue is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cotswold.optim.server_rules import AddUpdate
from cotswold.paramserver.core.partial_update import PartialUpdate
from cotswold.paramserver.core.rank_fanout import is_from_named_rank, is_rank_of
from cotswold.paramserver.core.sessions import Rejection, SessionRecord
from cotswold.paramserver.core.settings import AsyncSettings
from cotswold.paramserver.core.shard_metadata import CheckpointState, frozen_part
from cotswold.paramserver.core.update_application import UpdateApplier
from cotswold.paramserver.core.update_queue import QueuedUpdate
from cotswold.shards.core.admission import (
    Admission,
    Product,
    ReceivedFactors,
    UpdateArithmetic,
    UpdateRejectedError,
)
from cotswold.shards.core.shard_server import Arithmetic, ShardServer, Values
from cotswold.wire import (
    COORDINATOR,
    CoordinatorState,
    CoordinatorStateAck,
    PulledNewer,
    PullFrozen,
    PullNewer,
    Ranges,
    Send,
    ToUpdates,
    Update,
)
from cotswold.wire.ranges import is_valid, size


class UpdateServer(UpdateApplier[Values]):
    """Updates of the shards of ``server``."""

    def __init__(
        self,
        server: ShardServer[Values],
        settings: AsyncSettings,
        arithmetic: Arithmetic[Values],
        updates: UpdateArithmetic[Values],
        versions: Mapping[int, int] | None = None,
        products: Mapping[str, Product[Values]] | None = None,
    ) -> None:
        super().__init__(server, settings, arithmetic, updates, versions, products)
        self._admission = Admission(
            server.shards, settings.columns, settings.rule, arithmetic, updates, products
        )
        self.accepted = 0
        """Number of accepted updates, and of accepted parts."""
        self._parts: dict[int, PartialUpdate[Values]] = {}
        """Parts of the next update of each session whose replica has several ranks."""

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of the sessions that hold back updates of others: they owe a marker, or compute from versions
        that these updates would make too stale."""
        checkpoint = self.metadata.coordinator_state.checkpoint
        owing = self._sessions.without_marker(checkpoint) if checkpoint > self.metadata.checkpoint else ()
        found = {
            key for each in self._before_checkpoint for key in self._sessions_made_stale(each, self.versions)
        }
        return tuple(session.name for key, session in self._sessions if session.name in owing or key in found)

    def replica(self, sender: str, message: ToUpdates) -> str:
        """Return the replica of a sender that is one of its ranks; otherwise the sender."""
        if isinstance(message, Update | PullNewer):
            session = self._sessions.live.get(message.session)
            if session is not None and is_rank_of(sender, session.name):
                return session.name
        return sender

    def receive(self, sender: str, message: ToUpdates) -> list[Send]:
        """Handle a message; coordinator states are accepted from the coordinator only."""
        match message:
            case Update() | PullNewer() if 0 < message.session <= self.metadata.void_sessions:
                return []  # the coordinator makes it join again
            case Update():
                return self._update(sender, message)
            case PullNewer():
                return [Send(sender, self._pull(sender, message))]
            case PullFrozen() if sender == COORDINATOR:
                part = frozen_part(
                    self.frozen, self._server.name, self._server.numbers, message, self._arithmetic
                )
                return [Send(sender, part)]
            case CoordinatorState() if sender == COORDINATOR:
                return self._on_coordinator_state(message)
            case _:
                return []

    # --- receive updates ---

    def _update(self, sender: str, update: Update) -> list[Send]:
        session = self._session_of(sender, update)
        if isinstance(session, Rejection):
            return [Send(sender, self._refusal(update, *session))]
        if update.number <= session.last:
            answer = session.answer if update.number == session.last else None
            return [] if answer is None else [Send(session.name, answer)]
        if update.number != session.last + 1:
            return [Send(session.name, self._refusal(update, "expects", f"expects {session.last + 1}"))]
        if update.checkpoint > self.metadata.coordinator_state.checkpoint:
            reason = f"marker: checkpoint {update.checkpoint} has not begun"
            return [Send(session.name, self._refusal(update, "marker", reason, is_retryable=True))]
        if not update.shards and not update.ranks:
            return self._apply_marker(session, update)
        return self._admit(session, update)

    def _admit(self, session: SessionRecord, update: Update) -> list[Send]:
        """Queue or reject the next update of a session, or a part of it."""
        sends: list[Send] = []
        try:
            self._admission.check(update, self.metadata.rates)
            whole = self._join_parts(update)
            if whole is None:
                return []
            known, values = whole
            if self._is_repeat(known):
                return [self._repeated(session, known)]
            numbers = self._admission.size(known)
            busy = self._retry_reason(known, session, numbers)
            if busy is not None:
                sends = self.drain()
                busy = self._retry_reason(known, session, numbers)
            if busy is not None:
                # other sessions need not wait for it: it may wait for their markers
                session.record_full_queue()
                return [*sends, Send(session.name, self._refusal(update, "busy", busy, is_retryable=True))]
            if not update.ranks:
                values = self._admission.read(update, self._weights)
        except UpdateRejectedError as error:
            refusal = self._refusal(update, error.kind, str(error))
            self._parts.pop(update.session, None)
            session.use_number(update.number, update.checkpoint, is_empty=False)
            samples = update.samples if is_valid(update.samples) else ()
            session.record_refusal(samples, refusal, self._repeats(samples))
            return [*sends, Send(session.name, refusal)]
        self.accepted += not update.ranks
        self._parts.pop(update.session, None)
        checkpoint = max(update.checkpoint, session.checkpoint)
        known = replace(known, buffers=())  # the values keep what they need of the buffers
        waiting = QueuedUpdate(update.session, known, self._rate(update), values, numbers, checkpoint)
        session.use_number(update.number, update.checkpoint, is_empty=False)
        session.answer = None
        self._queue.add(waiting)
        return sends

    def _is_repeat(self, update: Update) -> bool:
        """True if the shards have all samples of an update: another session pushed them, and other servers
        lost them or never had them. Raise UpdateRejectedError if the shards have only some of them."""
        applied = self._repeats(update.samples)
        if applied and size(applied) < size(update.samples):
            raise UpdateRejectedError(
                "places", f"samples {applied} of {update.samples} are already applied on this server"
            )
        return bool(applied)

    def _repeats(self, samples: Ranges) -> Ranges:
        """Return those of these samples that the shards have."""
        return self._sessions.applied_of(samples) if self.settings.may_repeat_samples else ()

    def _repeated(self, session: SessionRecord, update: Update) -> Send:
        """Reply to an update whose samples are already in the shards."""
        self._parts.pop(update.session, None)
        session.use_number(update.number, update.checkpoint, is_empty=False)
        answer = self._applied(update)
        session.record_applied(update.samples, answer)
        return Send(session.name, answer)

    def _join_parts(self, update: Update) -> tuple[Update, list[Values | ReceivedFactors[Values]]] | None:
        """Return an update with the values of its parts (none if it arrived in one piece); None while parts
        are missing. Raise UpdateRejectedError."""
        if not update.ranks:
            return update, []
        parts = self._parts.setdefault(update.session, PartialUpdate())
        if parts.lacks(update):
            if self.settings.name not in self._server.vectors:
                return None  # it will be repeated
            parts.add(update, self._admission.read(update, self._weights))
            self.accepted += 1
        return parts.whole()

    def _session_of(self, sender: str, message: Update | PullNewer) -> SessionRecord | Rejection:
        """Return the session of the sender, or of the replica whose rank it is; or the reason for rejecting
        it."""
        session = self._sessions.live.get(message.session)
        if session is not None and message.run == self.settings.run:
            if is_from_named_rank(message, sender, session.name):
                return session
            return Rejection(
                "session", f"session: {sender!r:.60} may not send this message in session {message.session}"
            )
        return self._sessions.of_sender(sender, message.run, message.session)

    def _rate(self, update: Update) -> float:
        if isinstance(self.settings.rule, AddUpdate):
            return 1.0
        greatest = self.metadata.rates[update.rate]
        return self.settings.schedule.rate(greatest, update.samples[0][0]) if update.samples else greatest

    def _retry_reason(self, update: Update, session: SessionRecord, numbers: Mapping[int, int]) -> str | None:
        """Return the reason why an update must be retried; None if the queue accepts it."""
        if self.settings.name not in self._server.vectors:
            return f"busy: vector {self.settings.name!r} is not written yet"
        is_behind = max(update.checkpoint, session.checkpoint) > self.metadata.checkpoint
        if self._queue.has_room(numbers, self.metadata.checkpoint, is_behind=is_behind):
            return None
        return f"busy: {self.queued_bytes} bytes of updates are queued"

    def _apply_marker(self, session: SessionRecord, update: Update) -> list[Send]:
        session.use_number(update.number, update.checkpoint, is_empty=True)
        session.checkpoint = max(session.checkpoint, update.checkpoint)
        session.answer = self._applied(update)
        return [Send(session.name, session.answer), *self._freeze()]

    # --- pulls ---

    def _pull(self, sender: str, pull: PullNewer) -> PulledNewer:
        session = self._session_of(sender, pull) if pull.session else None
        error = session.reason if isinstance(session, Rejection) else self._invalid_reason(pull)
        if error is not None:
            return PulledNewer(pull.session, self._server.name, pull.number, (), (), (), error)
        if isinstance(session, SessionRecord):
            session.record_pull(pull.number, [(number, self.versions[number]) for number in pull.shards])
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

    def _invalid_reason(self, pull: PullNewer) -> str | None:
        if pull.run != self.settings.run:
            return self._sessions.wrong_run(pull.run).reason
        strange = sorted(set(pull.shards) - self.versions.keys())
        if strange:
            return f"shard: this server does not have shards {strange}"
        if len(set(pull.shards)) < len(pull.shards):
            return "shard: it names a shard twice"
        if len(pull.versions) != len(pull.shards):
            return f"length: {len(pull.versions)} versions for {len(pull.shards)} shards"
        if self.settings.name not in self._server.vectors:
            return f"vector: {self.settings.name!r} is not written yet"
        return None

    # --- coordinator states ---

    def _on_coordinator_state(self, state: CoordinatorState) -> list[Send]:
        sends: list[Send] = []
        if state.number < self.metadata.coordinator_state.number or not self._can_apply(state):
            return []
        self.metadata.void_sessions_until(number for number, _ in state.sessions)
        self.metadata.checkpoint = max(
            self.metadata.checkpoint, state.released_checkpoint
        )  # of an earlier incarnation
        if state.number > self.metadata.coordinator_state.number:
            self.metadata.apply_state(state)
            sends = [*self._set_live_sessions(dict(state.sessions)), *self._freeze()]
        cut = () if self.frozen is None else self.frozen.samples
        is_life_known = dict(state.incarnations).get(self._server.name, 0) >= self.metadata.incarnation
        known = state.recorded if is_life_known else ()
        samples = self._sessions.report(known)
        answer = CoordinatorStateAck(
            *(state.number, self._server.name, samples, self.metadata.checkpoint, self.queued_bytes, cut),
            earlier_sessions=self._sessions.report_ended_earlier(known),
            restored=self.metadata.restored,
        )
        return [*sends, Send(COORDINATOR, answer)]

    def _can_apply(self, state: CoordinatorState) -> bool:
        """True if a checkpoint that the coordinator state begins has parameters to keep, and memory for the
        copy."""
        if state.checkpoint <= self.metadata.coordinator_state.checkpoint:
            return True
        has_room = self.frozen is None or self.frozen.checkpoint <= state.released_checkpoint
        return has_room and self.settings.name in self._server.vectors

    def _set_live_sessions(self, names: Mapping[int, str]) -> list[Send]:
        """Set the live sessions; queued updates of ended ones are applied, unless they are behind a
        marker."""
        checkpoint = self.metadata.coordinator_state.checkpoint
        self._sessions.set_live(names, checkpoint, is_freezing=checkpoint > self.metadata.checkpoint)
        ended = self._sessions.ended
        self._parts = {number: each for number, each in self._parts.items() if number not in ended}
        sends = self._apply([each for each in self._before_checkpoint if each.session in ended])
        self._queue.remove([each for each in self._queue if each.session in ended])
        self._sessions.settle(self.metadata.coordinator_state.settled)
        return sends

    # --- checkpoints ---

    def _freeze(self) -> list[Send]:
        """Keep the state of a checkpoint once all markers have arrived."""
        checkpoint = self.metadata.coordinator_state.checkpoint
        if checkpoint <= self.metadata.checkpoint or self._sessions.without_marker(checkpoint):
            return []
        sends = self._apply(self._before_checkpoint)  # all of them arrived before the markers
        names = (self.settings.name, *self.settings.rule.state_names)
        self.metadata.freeze(
            CheckpointState(
                checkpoint,
                {
                    name: [self._arithmetic.combine([(1.0, each)], None) for each in self._vector(name)]
                    for name in names
                },
                tuple(self.versions[number] for number in self._server.numbers),
                self._sessions.checkpoint_report(self.metadata.recorded_at(checkpoint)),
            )
        )
        return sends
