"""The heartbeat of a rank: what follows from what it hears and from the time, as values.

Knows: beats of all ranks, verdicts, limits; readings of a clock that it is handed. Does not know: threads,
stores, processes, the time.

Every rank says a beat in the store at each interval, and reads those of the others and the verdict. Whoever
first sees a death, or fails, writes the verdict, and all who read it tell the same story:

1. A rank whose counter stands still for the timeout is silent. Where a connection has broken, a few beats are
   enough.
2. A rank that does nothing for very long while others wait for it has hung.
3. A store that does not answer for the timeout, or whose connection breaks, is gone, and its keeper with it.
4. Time in which this process stood still counts for nobody's silence. If it was given up meanwhile, that was
   its own standstill, not the death of another.
5. Who has a verdict writes it, says that it is gone, and ends; the keeper of the store only when the others
   are gone, or a few beats later.
6. Who has finished waits until all have, then says that it is gone; the keeper of the store leaves last.

A `Heartbeat` never changes: each of its verbs is something that happened, and returns the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.host.process_info import Usage
from cotswold.launch.watch.heartbeat_message import Beat, Rest, State, newest, stalled
from cotswold.launch.watch.role import Role
from cotswold.launch.watch.timeout import Silence, Standstill
from cotswold.launch.watch.verdict import Verdict, minutes

TICK_SECONDS = 0.1
"""How often the clock is read, and the store while a rank leaves."""
_COUNTED_SECONDS = 1.0
"""The most that one interval between two looks at the clock counts as silence of the store."""


@dataclass(frozen=True)
class Message:
    """What a rank says in the store: the verdict, unless there is one, then its beat."""

    beat: Beat
    end: Verdict | None


@dataclass(frozen=True)
class Heartbeat:
    """What one rank knows of all, and what it does next: `message`, `pause_seconds`, `conclusion`."""

    role: Role
    names: tuple[str, ...]
    """The ranks as sentences name them."""
    beats: tuple[Beat | None, ...]
    """The newest beat of each rank; None for one that has not come."""
    _silence: Silence
    _rest: Rest
    _standstill: Standstill
    _answered_at: float
    _answered: bool = False
    """Whether the store has answered since the last look at the clock."""
    _unanswered_seconds: float = 0.0
    """For how long it has not, while this process was awake."""
    _state: State = State.HERE
    _exchanges: int = 0
    _waiting: bool = False
    _suspicious: bool = False
    _message: Message | None = None
    _verdict: Verdict | None = None
    """Why all must stop, while it is being told."""
    _verdict_at: float = 0.0
    _failing: bool = False
    """Whether the verdict is this rank's own error, with which it ends by itself."""
    _told: bool = False
    _lost: bool = False
    """Whether the connection to the store has broken."""
    _conclusion: Verdict | None = None

    @classmethod
    def begin(cls, role: Role, usage: Usage, now: float) -> Heartbeat:
        """Before the first beat; ``usage`` is what this rank's main thread has done so far."""
        return cls(
            role,
            tuple(f"rank {rank}" for rank in range(role.size)),
            (None,) * role.size,
            Silence(3 * role.interval_seconds, now),
            Rest(usage, now),
            Standstill(now, now),
            now,
        )

    # --- what it does next ---

    @property
    def message(self) -> Message:
        """What it says now."""
        assert self._message is not None, "beating comes first"
        return self._message

    @property
    def pause_seconds(self) -> float:
        """The time until it speaks with the store again."""
        if self._verdict is not None and self.message.end is None:
            return 0.0
        hurried = self._verdict is not None or self._state is not State.HERE
        return TICK_SECONDS if hurried else self.role.interval_seconds

    @property
    def is_silent(self) -> bool:
        """Whether it has said all that it will say."""
        if self._conclusion is not None or self._told or self._lost:
            return True
        return self._message is not None and self._message.beat.state is State.GONE and not self.role.keeps

    @property
    def conclusion(self) -> Verdict | None:
        """Why this process must end now, whatever its main thread does; None as long as it need not."""
        verdict = self._conclusion
        if verdict is None or self._failing:
            return None
        if self._standstill.seconds and verdict.rank in (self.role.rank, self.role.keeper):
            return self._own_standstill()  # another may have ended the keeper, or this rank
        return verdict

    @property
    def absent(self) -> list[int]:
        """Ranks that have not come yet."""
        return [rank for rank, beat in enumerate(self.beats) if beat is None]

    @property
    def all_done(self) -> bool:
        """Whether every rank has finished its work, and none has failed: who fails is gone as well."""
        done = all(beat is not None and beat.state is not State.HERE for beat in self.beats)
        return self._verdict is None and done

    @property
    def may_leave(self) -> bool:
        """Whether the store is needed no more: by the others where this rank keeps it, else by this one."""
        own = self.beats[self.role.rank]
        return self._others_gone(None) if self.role.keeps else own is not None and own.state is State.GONE

    @property
    def is_told(self) -> bool:
        """Whether the others know why this rank fails, or cannot be told."""
        return self._told or self._lost

    # --- what happens in the threads ---

    def beating(self, usage: Usage, now: float) -> Heartbeat:
        """It is about to say its `message`."""
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
        """The store has answered: what each rank says, and the verdict."""
        beats = tuple(map(newest, self.beats, said))
        silence = self._silence.after(self._watched(beats), now)
        heard = replace(self, beats=beats, _silence=silence, _answered_at=now, _answered=True)
        known = None if end is None else Verdict.loads(end)
        if heard._verdict is not None:
            return heard._telling(known)
        verdict = known or heard._silent() or heard._stalled()
        return heard if verdict is None else replace(heard, _verdict=verdict, _verdict_at=now)

    def broken(self, now: float) -> Heartbeat:
        """The connection to the store has broken, or a call of it has taken longer than it may."""
        lost = replace(self, _lost=True)
        if self._failing or self._state is State.GONE:
            return lost
        return lost._concluding(self._verdict or self._keeper_lost(now))

    def looked(self, now: float, *, parent_gone: bool) -> Heartbeat:
        """The clock has been read, and whether the process is there without which this one must not live."""
        role, elapsed = self.role, now - self._standstill.looked_at
        looked = replace(
            self,
            _standstill=self._standstill.after(now, role),
            # time in which this process was stopped is no silence of the store
            _unanswered_seconds=0.0
            if self._answered
            else self._unanswered_seconds + min(elapsed, _COUNTED_SECONDS),
            _answered=False,
        )
        if parent_gone:
            gone = Verdict(None, "the command that started this rank is gone", silent=False)
            return replace(looked, _conclusion=gone)
        if self._verdict is not None and now - self._verdict_at > role.telling_seconds:
            return looked._concluding(self._verdict)
        if looked._unanswered_seconds > role.timeout_seconds:
            return looked._concluding(self._keeper_lost(now))
        return looked

    # --- what happens in the rank's own work ---

    def met(self, names: Sequence[str]) -> Heartbeat:
        """The ranks are known by name."""
        return replace(self, names=tuple(names))

    def entering(self) -> Heartbeat:
        """It waits for the others in one more exchange, which all enter in one order."""
        return replace(self, _exchanges=self._exchanges + 1, _waiting=True)

    def leaving(self) -> Heartbeat:
        """The exchange is over."""
        return replace(self, _waiting=False)

    def finished(self) -> Heartbeat:
        """Its work is done."""
        return replace(self, _state=State.DONE)

    def gone(self) -> Heartbeat:
        """It needs the store no more."""
        return replace(self, _state=State.GONE)

    def suspecting(self) -> Heartbeat:
        """A connection to another rank broke, so some rank is surely gone."""
        return replace(self, _suspicious=True)

    def failing(self, sentence: str, now: float) -> Heartbeat:
        """It ends with an error of its own, of which the others are to hear."""
        own = Verdict(self.role.rank, f"{self.names[self.role.rank]} failed: {sentence}", silent=False)
        return replace(self, _failing=True, _verdict=self._verdict or own, _verdict_at=now)

    # --- rules ---

    def _concluding(self, verdict: Verdict) -> Heartbeat:
        return replace(self, _conclusion=self._conclusion or verdict)

    def _telling(self, known: Verdict | None) -> Heartbeat:
        """One answer later; the keeper ends only once the others know, for the store goes with it."""
        assert self._verdict is not None, "there is something to tell"
        if self.message.end is None or (self.role.keeps and not self._others_gone(self._verdict.rank)):
            return self
        told = replace(self, _told=True)
        return told if self._failing else told._concluding(known or self._verdict)

    def _watched(self, beats: Sequence[Beat | None]) -> dict[int, int]:
        """The counters of those who must go on beating."""
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
        # after a standstill, too, the whole timeout: all may have been suspended, and wake up one by one
        timeout = self.role.timeout_seconds
        if self._suspicious:
            timeout = min(timeout, self.role.suspicious_timeout_seconds)
        rank = self._silence.longer_than(timeout)
        if rank is None:
            return None
        if self._standstill.seconds:
            return self._own_standstill()
        silence = f"has not been heard of for {timeout:.3g} s"
        if self._suspicious:
            silence = f"is gone: a connection broke, and it {silence}"
        return Verdict(rank, f"{self.names[rank]} {silence}", silent=True)

    def _stalled(self) -> Verdict | None:
        limit = self.role.stall_seconds
        rank = stalled({rank: beat for rank, beat in enumerate(self.beats) if beat is not None}, limit)
        if rank is None:
            return None
        idle = f"lives, but has done nothing for {minutes(limit)} while others wait for it"
        return Verdict(rank, f"{self.names[rank]} {idle}", silent=False)  # it beats, and hears of it

    def _own_standstill(self) -> Verdict:
        rank, seconds = self.role.rank, self._standstill.seconds
        sentence = f"{self.names[rank]} stood still for {seconds:.0f} s, and was given up"
        return Verdict(rank, sentence, silent=False)

    def _keeper_lost(self, now: float) -> Verdict:
        keeper = self.role.keeper
        name = self.role.store_name if keeper is None else self.names[keeper]
        silent = now - self._answered_at
        if silent > 3 * self.role.interval_seconds:
            return Verdict(keeper, f"{name} has not been heard of for {silent:.2g} s", silent=True)
        return Verdict(keeper, f"{name} is gone: the connection to it broke", silent=True)
