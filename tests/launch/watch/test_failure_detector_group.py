"""Several heartbeats over one store with virtual time: ranks die, hang or leave in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.host.process_info import ResourceUsage
from cotswold.launch.watch.abort_reason import AbortReason
from cotswold.launch.watch.failure_detector import TICK_SECONDS, FailureDetector
from cotswold.launch.watch.role import Role

TIMEOUT = 20.0
KEEPER = 0


@dataclass(frozen=True)
class Between:
    """True between two times, in which a process hangs."""

    begin: float
    end: float

    def __call__(self, now: float) -> bool:
        return self.begin <= now < self.end


@dataclass
class Player:
    """One rank: its heartbeat, the time of its next exchange with the store, and whether it can run at all.

    After ``done_at`` it leaves like `Monitor.leave`; a rank that has exited sends no more messages.
    """

    heartbeat: FailureDetector
    offset: float
    done_at: float = float("inf")
    stopped: Between = field(default_factory=lambda: Between(0.0, 0.0))
    speaks_at: float = 0.0
    gone_at: float | None = None
    ended: AbortReason | str | None = None
    ended_at: float = 0.0

    def end(self, how: AbortReason | str, now: float) -> None:
        self.ended, self.ended_at = how, now

    def speak(self, store: Store, now: float) -> None:
        if now + 1e-9 < self.speaks_at or self.heartbeat.is_silent:
            return
        if store.hangs(now):
            return
        if store.gone:
            self.heartbeat = self.heartbeat.disconnect(now)
            return
        spoken = self.heartbeat.prepare_beat(ResourceUsage(now, 0), now)
        if spoken.message.abort_reason is not None and store.end is None:
            store.end = spoken.message.abort_reason.dumps()
        store.beats[spoken.role.rank] = spoken.message.beat.dumps()
        self.heartbeat = spoken.receive(store.beats, store.end, now)
        self.speaks_at = now + self.heartbeat.pause_seconds

    def look(self, now: float) -> None:
        self.heartbeat = self.heartbeat.tick(now, parent_gone=False)
        if self.heartbeat.abort_reason is not None:
            self.end(self.heartbeat.abort_reason, now)

    def work(self, now: float) -> None:
        if now < self.done_at:
            return
        if self.gone_at is None:
            self.heartbeat = self.heartbeat.finish_work()
            if self.heartbeat.all_done:
                self.heartbeat, self.gone_at, self.speaks_at = self.heartbeat.leave(), now, now
        elif self.heartbeat.can_leave or now > self.gone_at + self.heartbeat.role.leave_timeout_seconds:
            self.end("left", now)


@dataclass
class Store:
    """The texts of all ranks; lost when the keeper has exited, and unresponsive while the keeper hangs."""

    players: list[Player]
    end: str | None = None
    beats: list[str | None] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        return self.players[KEEPER].ended is not None

    def hangs(self, now: float) -> bool:
        return not self.gone and self.players[KEEPER].stopped(now)


def players(size: int, offsets: list[float]) -> list[Player]:
    roles = [Role(rank, size, KEEPER, TIMEOUT, 90 * TIMEOUT) for rank in range(size)]
    return [
        Player(FailureDetector.begin(role, ResourceUsage(0.0, 0), 0.0), offset, speaks_at=offset)
        for role, offset in zip(roles, offsets, strict=True)
    ]


def play(all_of_them: list[Player], seconds: float) -> None:
    """Run the ranks for some seconds, or until all have exited."""
    store = Store(all_of_them, beats=[None] * len(all_of_them))
    for tick in range(int(seconds / TICK_SECONDS)):
        for player in all_of_them:
            now = tick * TICK_SECONDS + player.offset * TICK_SECONDS / 2
            if player.ended is None and not player.stopped(now):
                player.speak(store, now)
                player.look(now)
            if player.ended is None and not player.stopped(now):
                player.work(now)
        if all(player.ended is not None for player in all_of_them):
            return


sizes = st.integers(2, 4)
offsets = st.lists(st.floats(0, 0.99), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(sizes, offsets, st.lists(st.floats(0, 60), min_size=4, max_size=4))
def test_ranks_that_finish_at_any_times_all_exit_and_the_host_of_the_store_last(
    size: int, offsets: list[float], done_at: list[float]
) -> None:
    ranks = players(size, offsets[:size])
    for player, at in zip(ranks, done_at, strict=False):
        player.done_at = at
    play(ranks, 100.0)
    assert [player.ended for player in ranks] == ["left"] * size
    assert max(player.ended_at for player in ranks) == ranks[KEEPER].ended_at


@settings(max_examples=60, deadline=None)
@given(sizes, offsets, st.data())
def test_a_rank_that_stands_still_for_ever_is_named_by_all_others_in_time(
    size: int, offsets: list[float], data: st.DataObject
) -> None:
    ranks = players(size, offsets[:size])
    victim, at = data.draw(st.integers(0, size - 1)), data.draw(st.floats(2, 40))
    ranks[victim].stopped = Between(at, float("inf"))
    play(ranks, 100.0)
    for rank, player in enumerate(ranks):
        if rank != victim:
            assert isinstance(player.ended, AbortReason), player.heartbeat
            assert player.ended.rank == victim and player.ended.silent
            assert "has been silent for" in player.ended.sentence
            assert at + TIMEOUT - 1.5 < player.ended_at < at + TIMEOUT + 6.5


@settings(max_examples=60, deadline=None)
@given(sizes, offsets, st.data())
def test_a_rank_that_goes_on_after_it_was_given_up_blames_nobody_else(
    size: int, offsets: list[float], data: st.DataObject
) -> None:
    ranks = players(size, offsets[:size])
    victim = data.draw(st.integers(0, size - 1))
    until = 10.0 + data.draw(st.floats(2 * TIMEOUT, 4 * TIMEOUT))
    ranks[victim].stopped = Between(10.0, until)
    play(ranks, until + 60.0)
    for player in ranks:
        assert isinstance(player.ended, AbortReason) and player.ended.rank == victim
    own = ranks[victim].ended
    assert isinstance(own, AbortReason) and "was suspended for" in own.sentence and not own.silent


@settings(max_examples=60, deadline=None)
@given(sizes, offsets, st.lists(st.floats(0, 0.8 * TIMEOUT), min_size=4, max_size=4), st.floats(0.1, 60))
def test_ranks_that_were_all_suspended_and_wake_up_one_by_one_all_live(
    size: int, offsets: list[float], wake: list[float], seconds: float
) -> None:
    ranks = players(size, offsets[:size])
    begin, end = 10.0, 10.0 + seconds
    for player, later in zip(ranks, wake, strict=False):
        player.stopped = Between(begin, end + later)
    play(ranks, end + 3 * TIMEOUT)
    assert [player.ended for player in ranks] == [None] * size


@settings(max_examples=60, deadline=None)
@given(sizes, offsets, st.data())
def test_when_the_host_of_the_store_is_killed_all_others_name_it_at_once(
    size: int, offsets: list[float], data: st.DataObject
) -> None:
    ranks = players(size, offsets[:size])
    at = data.draw(st.floats(2, 40))
    play(ranks, at)
    ranks[KEEPER].end("killed", at)
    store = Store(ranks)
    for tick in range(int(2 / TICK_SECONDS)):
        for player in ranks[1:]:
            now = at + (tick + 1) * TICK_SECONDS
            if player.ended is None:
                player.speak(store, now)
                player.look(now)
    gone = AbortReason(KEEPER, "rank 0 is lost: the connection to it broke", silent=True)
    assert [player.ended for player in ranks[1:]] == [gone] * (size - 1)
