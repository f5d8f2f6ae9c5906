"""Seeded lives of pools of data servers: each requested batch arrives once, in order, for any faults of
messages, servers and trainers. A failing seed is named and can be replayed exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from tests.conftest import FUZZ
from tests.support.dataservice.simulated_run import ASKING, SILENT_SECONDS, Trial, World

from cotswold.dataservice.core import request_scheduler as requests
from cotswold.dataservice.core import shared_epochs as sharing
from cotswold.dataservice.core.epoch_pass import EpochPass
from cotswold.dataservice.core.pool import PoolState
from cotswold.dataservice.core.request_scheduler import RequestScheduler
from cotswold.dataservice.core.server_queue import RequestQueue
from cotswold.dataservice.core.shared_epochs import SharedEpochs
from cotswold.dataservice.core.trainer import BatchRequester
from cotswold.shards.core.sample_ledger import SampleLedger, SampleReport
from cotswold.simulate.protocols.network import Faults
from cotswold.wire import (
    BatchPending,
    BatchRejected,
    BatchReply,
    BatchRequest,
    CancelRequests,
    DataServerReport,
    EpochAssignment,
    EpochReport,
    Send,
)

LIVES = 85 * FUZZ
"""Lives of each world."""
FEW = 12 * FUZZ
"""Lives of each world judged in every run of the tests; the others are long tests."""
CHAOS = World(
    faults=Faults(lost_fraction=0.05, duplicated_fraction=0.05, delayed_fraction=0.1, late_seconds=1.0),
    deaths=0.3,
    pauses=0.2,
    arrivals=0.4,
    cuts=0.2,
)
SHARED = replace(CHAOS, shared=True, trainers=3, trainer_deaths=0.2)
STRANGERS = World(
    faults=Faults(lost_fraction=0.05, duplicated_fraction=0.05, delayed_fraction=0.3, late_seconds=1.0),
    batches=5,
    epochs=1,
    strangers=2,
)
SLOW = World(
    faults=Faults(lost_fraction=0.1, duplicated_fraction=0.1),
    paces=(30.0, 60.0),
    servers=2,
    batches=3,
    trainers=2,
)
WORLDS = {
    "own orders": CHAOS,
    "own orders, in little room": replace(CHAOS, room=1),
    "own orders, one server": replace(CHAOS, servers=1, deaths=0.0, arrivals=0.0),
    "own orders, many messages lost": replace(
        CHAOS,
        faults=Faults(lost_fraction=0.15, duplicated_fraction=0.3, delayed_fraction=0.5, late_seconds=2.0),
        pauses=0.0,
    ),
    "shared": SHARED,
    "shared, nobody dies": replace(SHARED, trainer_deaths=0.0, pauses=0.0),
    "shared, many messages late": replace(
        SHARED, faults=Faults(duplicated_fraction=0.3, delayed_fraction=0.5, late_seconds=4.0)
    ),
    "shared, broken off": replace(SHARED, breaks=0.1),
    "shared, broken off, many messages late": replace(
        SHARED,
        faults=Faults(duplicated_fraction=0.3, delayed_fraction=0.5, late_seconds=4.0),
        breaks=0.3,
        epochs=4,
    ),
    "shared, long pauses": replace(SHARED, pauses=0.5, pause_seconds=3 * SILENT_SECONDS, trainer_deaths=0.0),
    "at least once": replace(SHARED, at_least_once=True),
    "at least once, long pauses": replace(
        SHARED, at_least_once=True, pauses=0.5, pause_seconds=3 * SILENT_SECONDS
    ),
    "shared, one trainer": replace(SHARED, trainers=1),
    "strangers": STRANGERS,
    "own orders, a batch takes a minute": SLOW,
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_batch_is_delivered_once_and_in_order_in_the_first_simulations(world: str) -> None:
    judge_lives(world, range(FEW))


@pytest.mark.soak
@pytest.mark.parametrize("world", WORLDS)
def test_every_batch_is_delivered_once_and_in_order_for_any_exits_and_losses(world: str) -> None:
    judge_lives(world, range(FEW, LIVES))


def judge_lives(world: str, seeds: Iterable[int]) -> None:
    """Run each seed; raises AssertionError with the seed for a broken life."""
    for seed in seeds:
        try:
            Trial(seed, WORLDS[world]).live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world}: {error}") from error


def test_a_simulation_is_a_function_of_its_seed() -> None:
    lives = [Trial(3, SHARED) for _ in range(2)]
    for life in lives:
        life.live()
    assert len({(life.loop.now, life.network.messages) for life in lives}) == 1


def test_where_nothing_fails_every_sample_is_delivered_and_none_dealt_twice() -> None:
    trial = Trial(1, World(shared=True, trainers=3))
    trial.live()
    for account in trial.head.pool.shared_epochs.accounts:
        assert (account.delivered, account.died, account.left_out) == (account.samples, 0, 0)


@pytest.mark.parametrize("shared", [False, True])
def test_where_every_server_dies_trainers_hear_of_it_in_time(shared: bool) -> None:
    for seed in range(10):
        trial = Trial(seed, World(shared=shared, faults=CHAOS.faults, batches=400, epochs=30))
        trial.loop.run(lambda: False, 1.0)
        for server in trial.servers:
            server.kill()
        began = trial.loop.now
        bound = ASKING.no_server_seconds + 4 * SILENT_SECONDS
        assert trial.loop.run(lambda trial=trial: all(each.error for each in trial.trainers), bound)  # type: ignore[misc]  # mypy and defaults
        for each in trial.trainers:
            assert "no data server has been connected for 30 s" in each.error
            assert ASKING.no_server_seconds - 1.0 < each.error_time - began <= bound


def test_where_the_head_is_silent_whoever_shares_hears_of_it_in_time() -> None:
    trial = Trial(1, World(shared=True, epochs=30))
    trial.loop.run(lambda: False, 1.0)
    del trial.network.endpoints["pool"]
    assert trial.loop.run(lambda: all(each.error for each in trial.trainers), ASKING.no_server_seconds + 2.0)
    assert {each.error for each in trial.trainers} == {
        "the head of the pool of data servers has not answered for 30 s"
    }


# --- planted faults ---


def _answers_come_again(patched: pytest.MonkeyPatch) -> None:
    """Plant: a reply about a delivered batch counts as a reply to a request."""
    plain = RequestScheduler.receive

    def receive(
        self: RequestScheduler, sender: str, message: BatchReply | BatchRejected, now: float
    ) -> list[Send]:
        if isinstance(message, BatchReply) and message.number not in self._requests:
            (ask,) = message.buffers
            assert isinstance(ask, BatchRequest), "as simulated servers answer"
            self._requests[message.number] = requests._Request(ask, reply=message)
            return []
        return plain(self, sender, message, now)

    patched.setattr(RequestScheduler, "receive", receive)


def _in_order_of_arrival(patched: pytest.MonkeyPatch) -> None:
    def take(self: RequestScheduler) -> BatchReply | None:
        made = next((number for number, each in self._requests.items() if each.reply), None)
        return None if made is None else self.pick(made)

    patched.setattr(RequestScheduler, "take_next", take)


def _nothing_is_asked_again(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(RequestScheduler, "_retry", lambda self, request, now: [])


def _what_was_answered_is_not_answered_again(patched: pytest.MonkeyPatch) -> None:
    plain = RequestQueue.receive

    def receive(self: RequestQueue, sender: str, message: BatchRequest | CancelRequests) -> list[Send]:
        heard: set[tuple[str, int]] = self.__dict__.setdefault("_heard_before", set())
        if isinstance(message, BatchRequest):
            if (sender, message.number) in heard:
                return []
            heard.add((sender, message.number))
        return plain(self, sender, message)

    patched.setattr(RequestQueue, "receive", receive)


def _servers_that_come_back_are_not_listed(patched: pytest.MonkeyPatch) -> None:
    """Plant: a trainer that lost a server uses its earlier list."""
    plain = BatchRequester.tick

    def tick(self: BatchRequester, now: float) -> list[Send]:
        self._is_outdated = False
        return plain(self, now)

    patched.setattr(BatchRequester, "tick", tick)


def _handed_over_before_it_is_taken(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(
        EpochPass, "_can_deliver", lambda self, batch: self._requests.is_ready(self._numbers[batch])
    )


def _what_a_dead_trainer_had_is_not_dealt_again(patched: pytest.MonkeyPatch) -> None:
    def ended(self: SampleLedger, session: int, servers: Sequence[SampleReport]) -> None:
        self.record_report(session, servers)

    patched.setattr(SampleLedger, "end_session", ended)


def _what_was_taken_is_dealt_again(patched: pytest.MonkeyPatch) -> None:
    plain = sharing._Epoch.end

    def end(self: sharing._Epoch, session: sharing._Session, *, is_dead: bool) -> None:
        plain(self, session, is_dead=False)

    patched.setattr(sharing._Epoch, "end", end)


def _what_was_taken_is_recalled(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(sharing._Session, "recallable", property(lambda self: list(self.batches)))


def _whoever_was_dead_goes_on_in_its_session(patched: pytest.MonkeyPatch) -> None:
    plain = SharedEpochs._end

    def end(self: SharedEpochs, at: tuple[str, int], *, is_dead: bool) -> None:
        plain(self, at, is_dead=is_dead)
        self._ended_sessions.clear()

    patched.setattr(SharedEpochs, "_end", end)


def _answers_that_were_overtaken_are_heard(patched: pytest.MonkeyPatch) -> None:
    plain = EpochPass.receive

    def receive(self: EpochPass, dealt: EpochAssignment, now: float) -> list[Send]:
        self._last_assignment = 0
        return plain(self, dealt, now)

    patched.setattr(EpochPass, "receive", receive)


def _what_is_recalled_is_not_taken_away(patched: pytest.MonkeyPatch) -> None:
    """Plant: two trainers may take one batch."""
    plain = sharing._Epoch.record

    def hear(self: sharing._Epoch, session: sharing._Session, draw: EpochReport) -> None:
        for each in draw.taking:
            session.batches.setdefault(each, 0.0)
        plain(self, session, draw)

    patched.setattr(sharing._Epoch, "record", hear)


def _whoever_is_slow_says_nothing(patched: pytest.MonkeyPatch) -> None:
    plain = RequestQueue.receive

    def receive(self: RequestQueue, sender: str, message: BatchRequest | CancelRequests) -> list[Send]:
        return [each for each in plain(self, sender, message) if not isinstance(each.message, BatchPending)]

    patched.setattr(RequestQueue, "receive", receive)


def _strangers_that_come_first_are_not_turned_away(patched: pytest.MonkeyPatch) -> None:
    plain = PoolState._offered

    def offered(self: PoolState, offer: DataServerReport, now: float) -> list[Send]:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(PoolState, "_wants_other_store", lambda self, attend: False)
            return plain(self, offer, now)

    patched.setattr(PoolState, "_offered", offered)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], World, int]] = {
    "answers come again": (_answers_come_again, CHAOS, 3),
    "in order of arrival": (_in_order_of_arrival, CHAOS, 3),
    "nothing is asked again": (_nothing_is_asked_again, CHAOS, 5),
    "an answer is never repeated": (
        _what_was_answered_is_not_answered_again,
        replace(CHAOS, servers=1, deaths=0.0, arrivals=0.0),
        5,
    ),
    "no doubts": (
        _servers_that_come_back_are_not_listed,
        replace(CHAOS, servers=1, deaths=0.0, arrivals=0.0, pauses=0.0),
        10,
    ),
    "handed over untaken": (_handed_over_before_it_is_taken, WORLDS["shared, long pauses"], 10),
    "not dealt again": (_what_a_dead_trainer_had_is_not_dealt_again, SHARED, 5),
    "taken dealt again": (_what_was_taken_is_dealt_again, WORLDS["shared, long pauses"], 20),
    "taken recalled": (_what_was_taken_is_recalled, SHARED, 20),
    "dead sessions": (
        _whoever_was_dead_goes_on_in_its_session,
        WORLDS["shared, broken off, many messages late"],
        10,
    ),
    "overtaken answers": (_answers_that_were_overtaken_are_heard, WORLDS["shared, many messages late"], 20),
    "slow and silent": (_whoever_is_slow_says_nothing, SLOW, 3),
    "strangers served": (_strangers_that_come_first_are_not_turned_away, STRANGERS, 20),
    "recalled and taken": (_what_is_recalled_is_not_taken_away, WORLDS["shared, long pauses"], 20),
}
"""Planted faults, with the world and the number of seeds that find each."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_planted_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, world, seeds = FAULTS[fault]
    plant(monkeypatch)
    assert any(_fails(seed, world) for seed in range(seeds))


def _fails(seed: int, world: World) -> bool:
    try:
        Trial(seed, world).live()
    except AssertionError:
        return True
    return False
