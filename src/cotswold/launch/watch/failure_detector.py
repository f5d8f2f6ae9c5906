"""The failure detector of a rank: a pure state machine over received beats and the time.

Knows: beats of all ranks, abort reasons, limits, clock readings passed in. Does not know: threads, stores,
processes, the time.

At each interval every rank writes a beat into the store, and reads the abort reason and the others' beats.
The first rank that detects a death, or fails, writes the abort reason; all ranks that read it report it:

1. A rank whose counter does not change for the timeout is silent. After a broken connection, a few beats
   suffice.
2. A rank that is idle for very long while others wait for it has hung.
3. If the store does not answer for the timeout, or its connection breaks, the rank that hosts it is lost.
4. Time in which this process was suspended counts for no rank's silence. If the others dropped this rank
   meanwhile, the reason is its own suspension, not the death of another.
5. A rank with an abort reason writes it, announces its end, and ends. The rank that hosts the store ends only
   when the others have ended, or a few beats later.
6. A rank that has finished waits until all have, then announces its end; the host of the store leaves last.

A `FailureDetector` is immutable: each method that stands for an event returns the next state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.host.process_info import ResourceUsage
from cotswold.launch.watch.abort_reason import AbortReason, format_duration
from cotswold.launch.watch.beat import Beat, IdleTracker, State, find_stalled_rank, newer_beat
from cotswold.launch.watch.role import Role
from cotswold.launch.watch.trackers import SilenceTracker, SuspensionTracker

TICK_SECONDS = 0.1
"""Seconds between readings of the clock, and between calls of the store while a rank leaves."""
_SILENCE_STEP_SECONDS = 1.0
"""Maximum number of seconds between two clock readings that count as silence of the store."""


@dataclass(frozen=True)
class BeatMessage:
    """Contents of one message to the store: the abort reason, if any, and the beat."""

    beat: Beat
    abort_reason: AbortReason | None


@dataclass(frozen=True)
class FailureDetector:
    """A rank's knowledge of all ranks, and its next actions: `message`, `pause_seconds`, `abort_reason`."""

    role: Role
    names: tuple[str, ...]
    """Names of the ranks in sentences."""
    beats: tuple[Beat | None, ...]
    """The newest beat of each rank; None before the first."""
    _silence_tracker: SilenceTracker
    _idle_tracker: IdleTracker
    _suspension: SuspensionTracker
    _answered_at: float
    _has_answered: bool = False
    """True if the store has answered since the last reading of the clock."""
    _unanswered_seconds: float = 0.0
    """Seconds for which the store has not answered while this process was awake."""
    _state: State = State.RUNNING
    _exchanges: int = 0
    _is_waiting: bool = False
    _is_suspicious: bool = False
    _message: BeatMessage | None = None
    _abort_reason: AbortReason | None = None
    """Reason why all must stop, while this rank publishes it."""
    _aborted_at: float = 0.0
    _has_failed: bool = False
    """True if the reason is this rank's own error, with which the rank ends by itself."""
    _reported: bool = False
    _is_disconnected: bool = False
    """True if the connection to the store has broken."""
    _conclusion: AbortReason | None = None

    @classmethod
    def begin(cls, role: Role, usage: ResourceUsage, now: float) -> FailureDetector:
        """Return the state before the first beat; ``usage`` is the main thread's resource usage so far."""
        return cls(
            role,
            tuple(f"rank {rank}" for rank in range(role.size)),
            (None,) * role.size,
            SilenceTracker(3 * role.interval_seconds, now),
            IdleTracker(usage, now),
            SuspensionTracker(now, now),
            now,
        )

    # --- actions ---

    @property
    def message(self) -> BeatMessage:
        """The next message to the store."""
        assert self._message is not None, "beating must be called first"
        return self._message

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next call of the store."""
        if self._abort_reason is not None and self.message.abort_reason is None:
            return 0.0
        hurried = self._abort_reason is not None or self._state is not State.RUNNING
        return TICK_SECONDS if hurried else self.role.interval_seconds

    @property
    def is_silent(self) -> bool:
        """True if this rank will send no further message."""
        if self._conclusion is not None or self._reported or self._is_disconnected:
            return True
        return (
            self._message is not None and self._message.beat.state is State.LEFT and not self.role.hosts_store
        )

    @property
    def abort_reason(self) -> AbortReason | None:
        """Reason to end this process now, regardless of its main thread; None while there is no reason."""
        reason = self._conclusion
        if reason is None or self._has_failed:
            return None
        if self._suspension.seconds and reason.rank in (self.role.rank, self.role.store_rank):
            return self._own_suspension()  # another rank may have ended the host of the store, or this rank
        return reason

    @property
    def absent_ranks(self) -> list[int]:
        """Ranks whose first beat has not arrived."""
        return [rank for rank, beat in enumerate(self.beats) if beat is None]

    @property
    def all_done(self) -> bool:
        """True if every rank has finished its work or ended, and none has failed."""
        done = all(beat is not None and beat.state is not State.RUNNING for beat in self.beats)
        return self._abort_reason is None and done

    @property
    def can_leave(self) -> bool:
        """True if the store is no longer needed: by the others (on its host), or by this rank."""
        own = self.beats[self.role.rank]
        return (
            self._have_others_left(None)
            if self.role.hosts_store
            else own is not None and own.state is State.LEFT
        )

    @property
    def is_reported(self) -> bool:
        """True if the others know why this rank fails, or cannot be informed."""
        return self._reported or self._is_disconnected

    # --- events of the threads ---

    def prepare_beat(self, usage: ResourceUsage, now: float) -> FailureDetector:
        """Event: the rank is about to send its `message`."""
        rest = self._idle_tracker.advance(usage, now)
        beat = Beat(
            1 if self._message is None else self._message.beat.count + 1,
            self._state if self._abort_reason is None else State.LEFT,
            self._exchanges,
            self._is_waiting,
            rest.idle_seconds,
        )
        return replace(self, _idle_tracker=rest, _message=BeatMessage(beat, self._abort_reason))

    def receive(self, said: Sequence[str | None], end: str | None, now: float) -> FailureDetector:
        """Event: the store has answered with each rank's beat and the abort reason."""
        beats = tuple(map(newer_beat, self.beats, said))
        silence = self._silence_tracker.advance(self._beat_counts(beats), now)
        received = replace(self, beats=beats, _silence_tracker=silence, _answered_at=now, _has_answered=True)
        known = None if end is None else AbortReason.loads(end)
        if received._abort_reason is not None:
            return received._publish(known)
        reason = known or received._find_silent() or received._find_stalled()
        return received if reason is None else replace(received, _abort_reason=reason, _aborted_at=now)

    def disconnect(self, now: float) -> FailureDetector:
        """Event: the connection to the store has broken, or a call has exceeded its timeout."""
        lost = replace(self, _is_disconnected=True)
        if self._has_failed or self._state is State.LEFT:
            return lost
        return lost._conclude(self._abort_reason or self._store_lost(now))

    def tick(self, now: float, *, parent_gone: bool) -> FailureDetector:
        """Event: the clock and the existence of the parent process have been read."""
        role, elapsed = self.role, now - self._suspension.last_tick
        ticked = replace(
            self,
            _suspension=self._suspension.advance(now, role),
            # Time in which this process was stopped does not count as silence of the store.
            _unanswered_seconds=0.0
            if self._has_answered
            else self._unanswered_seconds + min(elapsed, _SILENCE_STEP_SECONDS),
            _has_answered=False,
        )
        if parent_gone:
            gone = AbortReason(None, "the command that started this rank has exited", silent=False)
            return replace(ticked, _conclusion=gone)
        if self._abort_reason is not None and now - self._aborted_at > role.publish_seconds:
            return ticked._conclude(self._abort_reason)
        if ticked._unanswered_seconds > role.timeout_seconds:
            return ticked._conclude(self._store_lost(now))
        return ticked

    # --- events of the rank's own work ---

    def set_names(self, names: Sequence[str]) -> FailureDetector:
        """Event: the names of the ranks are known."""
        return replace(self, names=tuple(names))

    def enter_exchange(self) -> FailureDetector:
        """Event: the rank enters the next exchange; all ranks enter exchanges in the same order."""
        return replace(self, _exchanges=self._exchanges + 1, _is_waiting=True)

    def leave_exchange(self) -> FailureDetector:
        """Event: the exchange has ended."""
        return replace(self, _is_waiting=False)

    def finish_work(self) -> FailureDetector:
        """Event: the rank's work is done."""
        return replace(self, _state=State.DONE)

    def leave(self) -> FailureDetector:
        """Event: the rank no longer needs the store."""
        return replace(self, _state=State.LEFT)

    def suspect(self) -> FailureDetector:
        """Event: a connection to another rank broke, so some rank must be lost."""
        return replace(self, _is_suspicious=True)

    def fail(self, sentence: str, now: float) -> FailureDetector:
        """Event: this rank ends with an error, which the others must learn."""
        own = AbortReason(self.role.rank, f"{self.names[self.role.rank]} failed: {sentence}", silent=False)
        return replace(self, _has_failed=True, _abort_reason=self._abort_reason or own, _aborted_at=now)

    # --- rules ---

    def _conclude(self, reason: AbortReason) -> FailureDetector:
        return replace(self, _conclusion=self._conclusion or reason)

    def _publish(self, known: AbortReason | None) -> FailureDetector:
        """Return the state after one more answer; the host of the store ends only once the others know."""
        assert self._abort_reason is not None, "there is a reason to publish"
        if self.message.abort_reason is None or (
            self.role.hosts_store and not self._have_others_left(self._abort_reason.rank)
        ):
            return self
        told = replace(self, _reported=True)
        return told if self._has_failed else told._conclude(known or self._abort_reason)

    def _beat_counts(self, beats: Sequence[Beat | None]) -> dict[int, int]:
        """Counters of the ranks that must continue to beat."""
        return {
            rank: beat.count
            for rank, beat in enumerate(beats)
            if beat is not None and rank != self.role.rank and beat.state is State.RUNNING
        }

    def _have_others_left(self, dead: int | None) -> bool:
        return all(
            beat is None or beat.state is State.LEFT
            for rank, beat in enumerate(self.beats)
            if rank not in (self.role.rank, dead)
        )

    def _find_silent(self) -> AbortReason | None:
        # The whole timeout counts after a suspension, too: all ranks may have been suspended, and wake up one
        # by one.
        timeout = self.role.timeout_seconds
        if self._is_suspicious:
            timeout = min(timeout, self.role.suspicious_timeout_seconds)
        rank = self._silence_tracker.find_silent_rank(timeout)
        if rank is None:
            return None
        if self._suspension.seconds:
            return self._own_suspension()
        silence = f"has been silent for {timeout:.3g} s"
        if self._is_suspicious:
            silence = f"is lost: a connection broke, and it {silence}"
        return AbortReason(rank, f"{self.names[rank]} {silence}", silent=True)

    def _find_stalled(self) -> AbortReason | None:
        limit = self.role.stall_seconds
        rank = find_stalled_rank(
            {rank: beat for rank, beat in enumerate(self.beats) if beat is not None}, limit
        )
        if rank is None:
            return None
        idle = f"is alive, but has been idle for {format_duration(limit)} while others wait for it"
        return AbortReason(rank, f"{self.names[rank]} {idle}", silent=False)  # it sends beats, and reads this

    def _own_suspension(self) -> AbortReason:
        rank, seconds = self.role.rank, self._suspension.seconds
        sentence = f"{self.names[rank]} was suspended for {seconds:.0f} s, and the others dropped it"
        return AbortReason(rank, sentence, silent=False)

    def _store_lost(self, now: float) -> AbortReason:
        store_rank = self.role.store_rank
        name = self.role.store_name if store_rank is None else self.names[store_rank]
        silent = now - self._answered_at
        if silent > 3 * self.role.interval_seconds:
            return AbortReason(store_rank, f"{name} has been silent for {silent:.2g} s", silent=True)
        return AbortReason(store_rank, f"{name} is lost: the connection to it broke", silent=True)
