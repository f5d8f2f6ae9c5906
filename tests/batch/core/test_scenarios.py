"""Single events on a simulated cluster whose workers take given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.batch.checker import check
from tests.support.batch.simulated_run import Trial, World, rules

from cotswold.batch.core.requests import EvaluationRequest, EvaluationResult
from cotswold.simulate.protocols.protocol_processes import SimulatedWorker
from cotswold.wire import Join, PortionResult, Send, Shutdown

TRAVELS: dict[str, dict[str, object]] = {
    "pushed": {"flush_seconds": 0.8},
    "along the tree": {"flush_seconds": 0.8, "tree": True},
    "reduced": {"pushes": False},
    "reduced, handed over": {"flush_seconds": 0.8, "pushes": False},
}


def trial(travel: str = "pushed", speeds: tuple[float, ...] = (0.1, 0.1), **more: object) -> Trial:
    settings = {"portions": 100, "silent_seconds": 10.0, **TRAVELS[travel], **more}
    keeps = not settings.get("pushes", True)
    fraction = settings.pop("fraction", 1.0)
    world = World(
        rules(**settings),  # type: ignore[arg-type]  # a test's own
        workers=len(speeds),
        keeps=keeps,
        fraction=fraction,  # type: ignore[arg-type]  # likewise
        whole=travel != "along the tree",
        speeds=speeds,
        restarts=False,
    )
    return Trial(1, world)


def workers(trial: Trial) -> list[SimulatedWorker]:
    return list(trial.workers.values())


def timed(trial: Trial, number: int) -> tuple[float, EvaluationResult]:
    start = trial.loop.now
    counted = trial.evaluate(number)
    return trial.loop.now - start, counted


@pytest.mark.parametrize("travel", TRAVELS)
@pytest.mark.parametrize("slower", [1, 4, 16])
def test_a_slow_worker_of_two_costs_what_its_speed_lacks(travel: str, slower: int) -> None:
    cluster = trial(travel, (0.1, 0.1 * slower))
    ideal = 100 / (10 + 10 / slower)
    for number in range(3):
        seconds, _ = timed(cluster, number)
        assert seconds < 1.03 * ideal


@pytest.mark.parametrize("travel", TRAVELS)
def test_a_stopped_worker_costs_its_share_and_does_no_harm_when_it_wakes_up(travel: str) -> None:
    cluster = trial(travel)
    cluster.evaluate(0)
    stopped = workers(cluster)[1]
    stopped.pause()
    for number in (1, 2):
        seconds, _ = timed(cluster, number)
        doubt = (
            4 * 0.25 if (travel.startswith("reduced"), number) == (True, 1) else 0
        )  # until nobody waits for its broadcast
        assert seconds < 1.04 * 10 + doubt
    cluster.loop.schedule(2.0, stopped.resume)
    cluster.evaluate(3)
    assert timed(cluster, 4)[0] < 1.05 * 5  # it takes part again


@pytest.mark.parametrize("travel", TRAVELS)
def test_a_death_gives_back_what_was_not_counted(travel: str) -> None:
    cluster = trial(travel)
    cluster.loop.schedule(2.5, lambda: cluster.kill(workers(cluster)[1]))
    seconds, counted = timed(cluster, 0)
    assert counted.account.lost >= 1
    unsaved = {"pushed": 9, "along the tree": 17, "reduced": 26, "reduced, handed over": 9}[travel]
    assert counted.account.lost <= unsaved
    assert seconds < 2.5 + 5.0 + 0.1 * unsaved + 0.2


@pytest.mark.parametrize("travel", ["pushed", "reduced"])
def test_short_portions_are_granted_and_told_of_several_at_a_time(travel: str) -> None:
    messages, seconds = [], []
    for ahead_seconds in (0.0, 0.1):
        cluster = trial(travel, (0.01, 0.01), portions=400, queue_seconds=ahead_seconds)
        cluster.evaluate(0)
        before = cluster.network.messages
        seconds.append(timed(cluster, 1)[0])
        messages.append(cluster.network.messages - before)
    assert messages[1] < 0.4 * messages[0]
    assert seconds[1] < 1.03 * seconds[0]


def test_after_a_suspected_portion_others_are_summed_again() -> None:
    cluster = trial("reduced, handed over", (0.01, 0.01), portions=400)
    cluster.evaluate(0)

    def replace_one() -> None:
        cluster.kill(workers(cluster)[1])
        cluster.loop.schedule(0.1, cluster.arrive)

    cluster.loop.schedule(0.3, replace_one)
    counted = cluster.evaluate(1)
    assert counted.account.lost >= 10  # the newest of them were suspected
    assert "worker 3" in counted.account.by_name
    alone = [name for name, portions in counted.sums.items() if len(portions) == 1]
    assert len(alone) <= 20


def test_a_worker_that_joins_in_the_middle_takes_part() -> None:
    cluster = trial(speeds=(0.1,))
    cluster.loop.schedule(4.0, cluster.arrive)
    seconds, counted = timed(cluster, 0)
    assert seconds < 4 + 3 + 0.5
    assert set(counted.account.by_name) == {"worker 1", "worker 2"}


@pytest.mark.parametrize("travel", TRAVELS)
def test_a_worker_that_wants_to_go_hands_over_what_it_has(travel: str) -> None:
    cluster = trial(travel)
    leaving = workers(cluster)[1]
    cluster.loop.schedule(2.0, leaving.leave)
    _, counted = timed(cluster, 0)
    assert not leaving.is_alive
    assert counted.account.lost == 0
    assert counted.account.by_name["worker 2"] >= 20


def test_data_stay_with_the_worker_that_has_them() -> None:
    cluster = trial()
    first = cluster.evaluate(0)
    homes = dict(cluster.coordinator.coordinator.homes.of)
    second = cluster.evaluate(1)
    moved = sum(homes[portion] != home for portion, home in cluster.coordinator.coordinator.homes.of.items())
    assert first.portions == second.portions
    assert moved <= 2


def test_a_backup_copy_counts_once() -> None:
    cluster = trial(speeds=(0.1, 5.0), portions=20)
    counted = cluster.evaluate(0)
    assert counted.account.backups_used >= 1
    assert cluster.loop.now < 3.0


def test_without_copies_everybody_waits_for_the_slowest() -> None:
    cluster = trial(speeds=(0.1, 5.0), portions=20, backup_tasks=0)
    counted = cluster.evaluate(0)
    assert counted.account.backups == 0
    assert cluster.loop.now > 5.0


def test_a_fraction_counts_no_more_than_it_says_and_can_be_had_again() -> None:
    cluster = trial(speeds=(0.1, 0.4), fraction=0.8)
    first = cluster.evaluate(0)
    assert first.samples >= 0.8 * 299 > first.samples - 3
    second = cluster.evaluate(5)  # another cycle
    assert second.portions != first.portions
    assert cluster.evaluate(6, portions=first.portions).portions == first.portions


def test_a_fraction_counts_patterns_of_a_slow_worker_as_often_as_others() -> None:
    cluster = trial(speeds=(0.1, 0.4), portions=20, fraction=0.8)
    cycles = 300
    counts = [0] * 20
    for cycle in range(cycles):
        for portion in cluster.evaluate(cycle).portions:
            counts[portion] += 1
    drawn = [0] * 20
    for cycle in range(cycles):
        for portion in cluster.world.rules.permutation.draw(cycle, 0.8):
            drawn[portion] += 1
    assert counts == drawn  # chance alone decides, which knows no workers


def test_a_deadline_leaves_out_what_nobody_has_computed_and_says_so() -> None:
    cluster = trial(speeds=(0.1, 0.1), deadline_factor=1.2)
    cluster.evaluate(0)
    for worker in workers(cluster):
        worker.seconds = lambda portion: 0.2  # from now on, and nobody knew
    cluster.coordinator.coordinator.take_events()
    counted = cluster.evaluate(1)
    left_out = counted.account.left_out
    assert left_out
    assert len(counted.portions) >= 50
    events = cluster.coordinator.coordinator.take_events()
    said = [portion for event in events if event.kind == "deadline" for portion in event.portions]
    assert sorted(said) == list(left_out)
    assert counted.account.lost == 0
    assert not [event for event in events if event.kind == "refused" and len(event.portions) > 1]
    computed = sum(worker.computed_portions for worker in workers(cluster)) - 100
    assert len(counted.portions) >= computed - 3  # nearly all that was computed counts


def test_a_portion_that_fails_on_every_worker_is_named_and_the_rest_is_kept() -> None:
    cluster = trial(portions=20)
    cluster.truth.failing = {7}
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    coordinator = cluster.coordinator.coordinator
    assert cluster.loop.run(lambda: coordinator.failure(cluster.loop.now) is not None, seconds=30)
    trouble = coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert (trouble.kind, trouble.portion) == ("poisoned", 7)
    assert "portion 7 is unreadable (on 2 workers); all other results are kept" in trouble.sentence
    computed = sum(worker.computed_portions for worker in workers(cluster))
    cluster.truth.failing = set()  # mended, on a machine that joins
    cluster.start()
    assert cluster.loop.run(lambda: cluster.coordinator.outcome is not None, seconds=30)
    outcome = cluster.coordinator.outcome
    assert isinstance(outcome, EvaluationResult)
    check(cluster.truth, range(20), cluster.point, outcome, cluster.vector("g"), tree=False)
    again = sum(worker.computed_portions for worker in cluster.workers.values()) - computed
    assert again <= 9  # with a sum that it spoilt


def test_a_portion_that_workers_die_of_is_named() -> None:
    cluster = trial(speeds=(0.1, 0.1, 0.1, 0.1), portions=8, deaths=2, backup_tasks=0)
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    deadly = 3

    def die_of_it() -> None:
        for worker in workers(cluster):
            if worker.is_alive and worker.current_portion == deadly:
                cluster.kill(worker)
        cluster.loop.schedule(0.05, die_of_it)

    die_of_it()
    coordinator = cluster.coordinator.coordinator
    assert cluster.loop.run(lambda: coordinator.failure(cluster.loop.now) is not None, seconds=60)
    trouble = coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert (trouble.kind, trouble.portion) == ("poisoned", deadly)
    assert len(coordinator.members) == 2


def test_an_evaluation_without_workers_says_so_and_goes_on_when_one_joins() -> None:
    cluster = trial(speeds=(0.1,), portions=20, no_worker_seconds=5.0)
    cluster.loop.schedule(0.5, lambda: cluster.kill(workers(cluster)[0]))
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    coordinator = cluster.coordinator.coordinator
    assert cluster.loop.run(lambda: coordinator.failure(cluster.loop.now) is not None, seconds=30)
    trouble = coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert trouble.kind == "lonely"
    assert "no worker for 5 s (none is connected)" in trouble.sentence
    cluster.start()
    assert cluster.loop.run(lambda: cluster.coordinator.outcome is not None, seconds=30)
    assert coordinator.failure(cluster.loop.now) is None


def test_parameters_that_differ_are_pulled_again_before_anything_is_computed() -> None:
    cluster = trial("reduced")
    cluster.evaluate(0)
    workers(cluster)[1]._vectors["x"][2] += 1e-12
    counted = cluster.evaluate(1)  # checked, to the last digit
    kinds = [(event.kind, event.name) for event in cluster.coordinator.coordinator.take_events()]
    assert ("point_mismatch", "worker 2") in kinds
    assert set(counted.account.by_name) == {"worker 1", "worker 2"}


def test_a_worker_of_another_run_is_sent_away() -> None:
    cluster = trial()
    coordinator = cluster.coordinator.coordinator
    sends = coordinator.receive("stranger", Join("stranger", 0, "", 5, 6), 0.0)
    assert sends == [Send("stranger", Shutdown(0))]
    assert "it has 5 samples, but the run has 299" in coordinator.take_events()[-1].sentence


def test_a_dead_server_is_trouble_that_names_it() -> None:
    cluster = trial()
    del cluster.network.endpoints["server 1"]
    cluster.coordinator.handle_end("server 1", "killed by signal 9")
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    trouble = cluster.coordinator.coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert trouble.sentence == "parameter server server 1 is lost: killed by signal 9"


def test_a_result_of_another_number_of_patterns_counts_nowhere() -> None:
    cluster = trial(portions=5, speeds=(0.1,))
    worker = workers(cluster)[0]
    honest = worker._portion

    def dishonest(number: int, point: Sequence[float]) -> tuple[PortionResult, list[float]]:
        result, gradient = honest(number, point)
        return replace(result, samples=1), gradient

    worker._portion = dishonest
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    coordinator = cluster.coordinator.coordinator
    assert cluster.loop.run(lambda: coordinator.failure(cluster.loop.now) is not None, seconds=30)
    trouble = coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert "it counted 1 samples in portion 0, which has 3 samples" in trouble.sentence


@pytest.mark.parametrize("portions", [(), (0, 100), (-1,)])
def test_portions_that_there_are_not_are_refused(portions: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="portions must be in 0 to 99"):
        trial().coordinator.evaluate(EvaluationRequest("x", "g", portions=portions))


def test_no_portion_is_to_blame_where_workers_are_killed_all_the_time() -> None:
    cluster = trial(speeds=(0.1, 0.1, 0.1), portions=100, deaths=3)

    def kill_one() -> None:
        alive = [worker for worker in workers(cluster) if worker.is_alive]
        cluster.kill(alive[cluster.random.randrange(len(alive))])
        cluster.start()
        cluster.loop.schedule(0.3, kill_one)

    cluster.loop.schedule(0.3, kill_one)
    for number in range(3):
        cluster.evaluate(number)
        assert cluster.coordinator.coordinator.failure(cluster.loop.now) is None


@pytest.mark.parametrize("travel", ["pushed", "reduced"])
def test_two_portions_that_kill_are_found_while_workers_are_started_again(travel: str) -> None:
    cluster = trial(travel, speeds=(0.1, 0.1), portions=20, deaths=3)
    deadly = {3, 12}

    def die_of_it() -> None:
        for worker in workers(cluster):
            if worker.is_alive and worker.current_portion in deadly:
                cluster.kill(worker)
                cluster.start()
        cluster.loop.schedule(0.05, die_of_it)

    die_of_it()
    cluster.coordinator.evaluate(EvaluationRequest("x", "g"))
    coordinator = cluster.coordinator.coordinator
    assert cluster.loop.run(lambda: coordinator.failure(cluster.loop.now) is not None, seconds=60)
    trouble = coordinator.failure(cluster.loop.now)
    assert trouble is not None
    assert trouble.portion == 3 and "portion 3 kills every worker: killed by signal 9" in trouble.sentence
    assert cluster.started <= 2 + 2 * 4
    deadly.clear()
    cluster.network.send(cluster.coordinator.name, coordinator.retry(cluster.loop.now))
    assert cluster.loop.run(lambda: cluster.coordinator.outcome is not None, seconds=30)
    outcome = cluster.coordinator.outcome
    assert isinstance(outcome, EvaluationResult)
    check(cluster.truth, range(20), cluster.point, outcome, cluster.vector("g"), tree=False)
