"""The heartbeat of a rank: a pure state machine over received beats and the time.

Knows: beats of all ranks, verdicts, limits, clock readings passed in. Does not know: threads, stores,
processes, the time.

At each interval every rank writes a beat into the store, and reads the verdict and the others' beats. The
first rank that detects a death, or fails, writes the verdict; all ranks that read it report the same reason:

1. A rank whose counter does not change for the timeout is silent. After a broken connection, a few beats
   suffice.
2. A rank that is idle for very long while others wait for it has hung.
3. If the store does not answer for the timeout, or its connection breaks, the rank that hosts it is lost.
4. Time in which this process was suspended counts for no rank's silence. If the others dropped this rank
   meanwhile, the reason is its own suspension, not the death of another.
5. A rank with a verdict writes it, announces its end, and ends. The rank that hosts the store ends only when
   the others have ended, or a few beats later.
6. A rank that has finished waits until all have, then announces its end; the host of the store leaves last.

A `Heartbeat` is immutable: each method that stands for an event returns the next state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.host.process_info import Usage
from cotswold.launch.watch.abort_reason import Verdict, minutes
from cotswold.launch.watch.beat import Beat, Rest, State, newest, stalled
from cotswold.launch.watch.role import Role
from cotswold.launch.watch.trackers import Silence, Standstill

TICK_SECONDS = 0.1
"""Seconds between readings of the clock, and between calls of the store while a rank leaves."""
_COUNTED_SECONDS = 1.0
"""Maximum number of seconds between two clock readings that count as silence of the store."""


@dataclass(frozen=True)
class Message:
    """Contents of one message to the store: the verdict, if there is one, and the beat."""

    beat: Beat
    end: Verdict | None


@dataclass(frozen=True)
class Heartbeat:
    """A rank's knowledge of all ranks, and its next actions: `message`, `pause_seconds`, `conclusion`."""

    role: Role
    names: tuple[str, ...]
    """Names of the ranks in sentences."""
    beats: tuple[Beat | None, ...]
    """The newest beat of each rank; None before the first."""
    _silence: Silence
    _rest: Rest
    _standstill: Standstill
    _answered_at: float
    _answered: bool = False
    """True if the store has answered since the last reading of the clock."""
    _unanswered_seconds: float = 0.0
    """Seconds for which the store has not answered while this process was awake."""
    _state: State = State.HERE
    _exchanges: int = 0
    _waiting: bool = False
    _suspicious: bool = False
    _message: Message | None = None
    _verdict: Verdict | None = None
    """Reason why all must stop, while this rank publishes it."""
    _verdict_at: float = 0.0
    _failing: bool = False
    """True if the verdict is this rank's own error, with which the rank ends by itself."""
    _told: bool = False
    _lost: bool = False
    """True if the connection to the store has broken."""
    _conclusion: Verdict | None = None

    @classmethod
    def begin(cls, role: Role, usage: Usage, now: float) -> Heartbeat:
        """Return the state before the first beat; ``usage`` is the main thread's resource usage so far."""
        return cls(
            role,
            tuple(f"rank {rank}" for rank in range(role.size)),
            (None,) * role.size,
            Silence(3 * role.interval_seconds, now),
            Rest(usage, now),
            Standstill(now, now),
            now,
        )

    # --- actions ---

    @property
    def message(self) -> Message:
        """The next message to the store."""
        assert self._message is not None, "beating must be called first"
        return self._message

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next call of the store."""
        if self._verdict is not None and self.message.end is None:
            return 0.0
        hurried = self._verdict is not None or self._state is not State.HERE
        return TICK_SECONDS if hurried else self.role.interval_seconds

    @property
    def is_silent(self) -> bool:
        """True if this rank will send no further message."""
        if self._conclusion is not None or self._told or self._lost:
            return True
        return self._message is not None and self._message.beat.state is State.GONE and not self.role.keeps

    @property
    def conclusion(self) -> Verdict | None:
        """Reason to end this process now, regardless of its main thread; None while there is no reason."""
        verdict = self._conclusion
        if verdict is None or self._failing:
            return None
        if self._standstill.seconds and verdict.rank in (self.role.rank, self.role.keeper):
            return self._own_standstill()  # another rank may have ended the host of the store, or this rank
        return verdict

    @property
    def absent(self) -> list[int]:
        """Ranks whose first beat has not arrived."""
        return [rank for rank, beat in enumerate(self.beats) if beat is None]

    @property
    def all_done(self) -> bool:
        """True if every rank has finished its work or ended, and none has failed."""
        done = all(beat is not None and beat.state is not State.HERE for beat in self.beats)
        return self._verdict is None and done

    @property
    def may_leave(self) -> bool:
        """True if the store is no longer needed: by the others (on its host), or by this rank."""
        own = self.beats[self.role.rank]
        return self._others_gone(None) if self.role.keeps else own is not None and own.state is State.GONE

    @property
    def is_told(self) -> bool:
        """True if the others know why this rank fails, or cannot be informed."""
        return self._told or self._lost

    # --- events of the threads ---

    def beating(self, usage: Usage, now: float) -> Heartbeat:
        """Event: the rank is about to send its `message`."""
        rest = self._rest.after(usage, now)
        beat = Beat(
            1 if self._message is None else self._message.beat.count + 1,
            self._state if self._verdict is None else State.GONE,
            self._exchanges,
            self._waiting,
            rest.idle_seconds,
        )
        return replace(self, _rest=rest, _message=Message(beat, self._verdict))

    def heard(self, said: Sequence[str | None], end: str | None, now: float) -> Heartbeat:
        """Event: the store has answered with each rank's beat and the verdict."""
        beats = tuple(map(newest, self.beats, said))
        silence = self._silence.after(self._watched(beats), now)
        heard = replace(self, beats=beats, _silence=silence, _answered_at=now, _answered=True)
        known = None if end is None else Verdict.loads(end)
        if heard._verdict is not None:
            return heard._telling(known)
        verdict = known or heard._silent() or heard._stalled()
        return heard if verdict is None else replace(heard, _verdict=verdict, _verdict_at=now)

    def broken(self, now: float) -> Heartbeat:
        """Event: the connection to the store has broken, or a call has exceeded its timeout."""
        lost = replace(self, _lost=True)
        if self._failing or self._state is State.GONE:
            return lost
        return lost._concluding(self._verdict or self._keeper_lost(now))

    def looked(self, now: float, *, parent_gone: bool) -> Heartbeat:
        """Event: the clock and the existence of the parent process have been read."""
        role, elapsed = self.role, now - self._standstill.looked_at
        looked = replace(
            self,
            _standstill=self._standstill.after(now, role),
            # Time in which this process was stopped does not count as silence of the store.
            _unanswered_seconds=0.0
            if self._answered
            else self._unanswered_seconds + min(elapsed, _COUNTED_SECONDS),
            _answered=False,
        )
        if parent_gone:
            gone = Verdict(None, "the command that started this rank has exited", silent=False)
            return replace(looked, _conclusion=gone)
        if self._verdict is not None and now - self._verdict_at > role.telling_seconds:
            return looked._concluding(self._verdict)
        if looked._unanswered_seconds > role.timeout_seconds:
            return looked._concluding(self._keeper_lost(now))
        return looked

    # --- events of the rank's own work ---

    def met(self, names: Sequence[str]) -> Heartbeat:
        """Event: the names of the ranks are known."""
        return replace(self, names=tuple(names))

    def entering(self) -> Heartbeat:
        """Event: the rank enters the next exchange; all ranks enter exchanges in the same order."""
        return replace(self, _exchanges=self._exchanges + 1, _waiting=True)

    def leaving(self) -> Heartbeat:
        """Event: the exchange has ended."""
        return replace(self, _waiting=False)

    def finished(self) -> Heartbeat:
        """Event: the rank's work is done."""
        return replace(self, _state=State.DONE)

    def gone(self) -> Heartbeat:
        """Event: the rank no longer needs the store."""
        return replace(self, _state=State.GONE)

    def suspecting(self) -> Heartbeat:
        """Event: a connection to another rank broke, so some rank must be lost."""
        return replace(self, _suspicious=True)

    def failing(self, sentence: str, now: float) -> Heartbeat:
        """Event: this rank ends with an error, which the others must learn."""
        own = Verdict(self.role.rank, f"{self.names[self.role.rank]} failed: {sentence}", silent=False)
        return replace(self, _failing=True, _verdict=self._verdict or own, _verdict_at=now)

    # --- rules ---

    def _concluding(self, verdict: Verdict) -> Heartbeat:
        return replace(self, _conclusion=self._conclusion or verdict)

    def _telling(self, known: Verdict | None) -> Heartbeat:
        """Return the state after one more answer; the host of the store ends only once the others know."""
        assert self._verdict is not None, "there is a verdict to publish"
        if self.message.end is None or (self.role.keeps and not self._others_gone(self._verdict.rank)):
            return self
        told = replace(self, _told=True)
        return told if self._failing else told._concluding(known or self._verdict)

    def _watched(self, beats: Sequence[Beat | None]) -> dict[int, int]:
        """Counters of the ranks that must continue to beat."""
        return {
            rank: beat.count
            for rank, beat in enumerate(beats)
            if beat is not None and rank != self.role.rank and beat.state is State.HERE
        }

    def _others_gone(self, dead: int | None) -> bool:
        return all(
            beat is None or beat.state is State.GONE
            for rank, beat in enumerate(self.beats)
            if rank not in (self.role.rank, dead)
        )

    def _silent(self) -> Verdict | None:
        # The whole timeout counts after a suspension, too: all ranks may have been suspended, and wake up one
        # by one.
        timeout = self.role.timeout_seconds
        if self._suspicious:
            timeout = min(timeout, self.role.suspicious_timeout_seconds)
        rank = self._silence.longer_than(timeout)
        if rank is None:
            return None
        if self._standstill.seconds:
            return self._own_standstill()
        silence = f"has been silent for {timeout:.3g} s"
        if self._suspicious:
            silence = f"is lost: a connection broke, and it {silence}"
        return Verdict(rank, f"{self.names[rank]} {silence}", silent=True)

    def _stalled(self) -> Verdict | None:
        limit = self.role.stall_seconds
        rank = stalled({rank: beat for rank, beat in enumerate(self.beats) if beat is not None}, limit)
        if rank is None:
            return None
        idle = f"is alive, but has been idle for {minutes(limit)} while others wait for it"
        return Verdict(rank, f"{self.names[rank]} {idle}", silent=False)  # it sends beats, and reads this

    def _own_standstill(self) -> Verdict:
        rank, seconds = self.role.rank, self._standstill.seconds
        sentence = f"{self.names[rank]} was suspended for {seconds:.0f} s, and the others dropped it"
        return Verdict(rank, sentence, silent=False)

    def _keeper_lost(self, now: float) -> Verdict:
        keeper = self.role.keeper
        name = self.role.store_name if keeper is None else self.names[keeper]
        silent = now - self._answered_at
        if silent > 3 * self.role.interval_seconds:
            return Verdict(keeper, f"{name} has been silent for {silent:.2g} s", silent=True)
        return Verdict(keeper, f"{name} is lost: the connection to it broke", silent=True)
