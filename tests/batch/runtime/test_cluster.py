"""A cluster of processes gives the results of one process, even if processes die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.replicas.works import LeastSquares

from cotswold import wire as m
from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import open_cluster
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer
from cotswold.optim import Combine, Dot, LBFGSMethod
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.shards.core.permutation import format_ranges
from cotswold.testing import stopped
from cotswold.wire.messenger import AnyMessage, Received

WORK = "tests.support.replicas.works:least_squares"
PATTERNS, SIZE = 1003, 50

Opener = Callable[..., BatchCluster]


@pytest.fixture
def opened(fork_server: ForkServer) -> Opener:
    def open_one(
        work: str = WORK,
        arguments: Mapping[str, object] | None = None,
        events: list[tuple[str, Mapping[str, object]]] | None = None,
        **settings: Any,
    ) -> BatchCluster:
        chosen = ClusterSettings(**{"portion_size": 20, "shard_bytes": 64, "alone_seconds": 3.0, **settings})
        given = {"samples": PATTERNS, "size": SIZE} if arguments is None else arguments
        heard = [] if events is None else events
        return open_cluster(
            chosen, work, given, processes=fork_server, on_event=lambda kind, more: heard.append((kind, more))
        )

    return open_one


def alone(point: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return mean and gradient over all samples, in this process."""
    work = LeastSquares(PATTERNS, SIZE, 0, torch.float64)
    work.parameters.copy_(point)
    gradient = torch.zeros(SIZE, dtype=torch.float64)
    found = work.add(range(PATTERNS), gradient)
    return found.value / PATTERNS, gradient / PATTERNS


def some_point() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).standard_normal(SIZE))


@pytest.mark.parametrize("travel", ["bunyip", "sandblaster"])
def test_value_and_gradient_are_those_of_one_process(opened: Opener, travel: str) -> None:
    with opened(point_transfer=travel, servers=2) as cluster:
        cluster.write("x", some_point())
        found = cluster.evaluate("x", "g", after=[Dot("g", "g")])
        value, gradient = alone(some_point())
        assert found.value == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(cluster.read("g"), gradient, rtol=1e-11)
        assert found.dots[0] == pytest.approx(float(gradient @ gradient), rel=1e-11)
        assert (found.samples, found.sample_set) == (PATTERNS, "all")
        alone_value = cluster.evaluate("x", None, sample_set=found.sample_set)
        assert alone_value.value == found.value


def test_the_first_portion_of_a_worker_may_wait_for_longer_than_later_ones(opened: Opener) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    waiting = {"samples": 20, "size": SIZE, "seconds": 4.5}  # what is measured
    with opened(arguments=waiting, events=events, workers=1, servers=1, silent_seconds=1.0) as cluster:
        assert cluster.evaluate("x", None).samples == 20
    assert [more for kind, more in events if kind == "exited"] == []


def test_a_line_search_costs_step_lengths_alone(opened: Opener) -> None:
    large = {"samples": 100, "size": 20_000}
    with opened(point_transfer="bunyip", arguments=large, shard_bytes=1 << 16, workers=1) as cluster:
        cluster.run([Combine("d", ((2.0, "x"),))])
        cluster.evaluate("x", "g")
        for step in (1.0, 0.5, 0.25):
            before = cluster.status()
            cluster.evaluate("t", "g", before=[Combine("t", ((1.0, "x"), (step, "d")))])
            after = cluster.status()
            assert after.sent_bytes - before.sent_bytes < 8_000
            assert after.received_bytes - before.received_bytes < 8_000


def trajectory(cluster: BatchCluster, steps: int = 6) -> list[float]:
    method = LBFGSMethod(cluster.vectors, cluster.objective)
    found = [method.step().value for _ in range(steps)]
    method.flush()
    return [*found, *cluster.read("x").tolist()]


def test_deterministic_runs_have_the_same_bits_whoever_computes_and_dies(opened: Opener) -> None:
    with opened(deterministic=True, workers=1, servers=1, point_transfer="sandblaster") as cluster:
        expected = trajectory(cluster)
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.002}
    with opened(deterministic=True, workers=3, servers=3, point_transfer="bunyip", arguments=slow) as cluster:
        killed: list[float] = []

        def kill(status: ClusterStatus) -> None:
            if len(killed) < 3 and time.monotonic() - (killed or [0.0])[-1] > 0.2:
                killed.append(time.monotonic())
                os.kill(next(iter(cluster.workers.values())), signal.SIGKILL)

        cluster.watch(kill)
        assert trajectory(cluster) == expected
        assert killed


@pytest.mark.parametrize("travel", ["bunyip", "sandblaster"])
def test_workers_that_are_killed_are_started_again_and_nothing_counts_twice(
    opened: Opener, travel: str
) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.004}
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(point_transfer=travel, arguments=slow, events=events) as cluster:
        cluster.write("x", some_point())
        value, gradient = alone(some_point())
        for _ in range(4):
            victim, number = next(iter(cluster.workers.items()))
            os.kill(number, signal.SIGKILL)
            found = cluster.evaluate("x", "g")
            assert found.value == pytest.approx(value, rel=1e-13)
            np.testing.assert_allclose(cluster.read("g"), gradient, rtol=1e-11)
            assert cluster.last is not None and cluster.last.portions == tuple(range(51))
            assert victim not in cluster.workers
        ended = [more for kind, more in events if kind == "exited"]
        assert len(ended) == 4 and all("SIGKILL" in str(each["reason"]) for each in ended)
        assert len([1 for kind, _ in events if kind == "joined"]) >= 5


def test_a_stopped_worker_is_done_without_and_does_no_harm_when_it_wakes(opened: Opener) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.002}
    with opened(arguments=slow, silent_seconds=1.0, point_transfer="sandblaster") as cluster:
        cluster.write("x", some_point())
        value, _ = alone(some_point())
        cluster.evaluate("x", "g")
        with stopped(next(iter(cluster.workers.values()))):
            evaluate_until(cluster, lambda: cluster.status().workers == 1, value)
        evaluate_until(cluster, lambda: cluster.status().workers == 2, value)
        assert cluster.evaluate("x", "g").value == pytest.approx(value, rel=1e-13)


def evaluate_until(cluster: BatchCluster, holds: Callable[[], bool], value: float) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        assert cluster.evaluate("x", "g").value == pytest.approx(value, rel=1e-13)


def test_a_part_of_the_patterns_is_the_same_for_a_whole_cycle(opened: Opener) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(sample_fraction=0.5, events=events) as cluster:
        first = cluster.evaluate("x", "g")
        assert 0.5 * PATTERNS <= first.samples < 0.55 * PATTERNS
        again = cluster.evaluate("x", "g", sample_set=first.sample_set)
        assert (again.sample_set, again.samples) == (first.sample_set, first.samples)
        assert again.value == pytest.approx(first.value, rel=1e-13)
        portions = cluster.counted(first.sample_set)
        assert sum(len(cluster.portion_samples(each)) for each in portions) == first.samples
        part = cluster.part(first.sample_set, 0.2)
        assert cluster.evaluate("x", "g", sample_set=part).samples < 0.3 * first.samples
        assert set(cluster.counted(part)) < set(portions)
        other = cluster.evaluate("x", "g")
        assert other.sample_set != first.sample_set
        assert cluster.counted(other.sample_set) != portions
        with pytest.raises(UserError, match="unknown set of samples"):
            cluster.evaluate("x", "g", sample_set=first.sample_set)
        recorded = [
            str(more["portions"]) for kind, more in events if kind == "evaluation" and more["is_drawn"]
        ]
    with opened(sample_fraction=0.5, seed=9) as cluster:
        cluster.replay(recorded)
        assert cluster.counted(cluster.evaluate("x", "g").sample_set) == portions


def test_progress_counts_the_patterns_of_this_evaluation_alone(opened: Opener) -> None:
    seen: list[ClusterStatus] = []
    with opened(arguments={"samples": PATTERNS, "size": SIZE, "seconds": 0.05}) as cluster:
        part = cluster.part(cluster.evaluate("x", None).sample_set, 0.3)
        cluster.watch(seen.append)
        cluster.evaluate("x", "g", sample_set=part)
        samples = 20 * len(cluster.counted(part))
    assert 0 < max(each.samples for each in seen) <= samples < PATTERNS / 2


def test_a_run_goes_on_with_the_same_bits_on_other_processes(opened: Opener) -> None:
    with opened(deterministic=True, sample_fraction=0.5) as cluster:
        method = LBFGSMethod(cluster.vectors, cluster.objective, cycle_iterations=2)
        for _ in range(3):
            method.step()
        state = method.state()
        vectors = {name: cluster.read(name) for name in state.vectors}
        values, sets = json.dumps(state.values), cluster.state()  # as a checkpoint keeps them
        expected = [method.step().value for _ in range(4)]
    with opened(deterministic=True, sample_fraction=0.5, workers=1, servers=3) as cluster:
        for name, vector in vectors.items():
            cluster.write(name, vector)
        cluster.load(sets)
        method = LBFGSMethod(cluster.vectors, cluster.objective, cycle_iterations=2)
        method.load(json.loads(values))
        assert [method.step().value for _ in range(4)] == expected


def test_held_out_patterns_are_measured_where_it_is_asked(opened: Opener) -> None:
    with opened() as cluster:
        cluster.write("y", some_point())
        means = cluster.validate("y")
        square = float(some_point().square().sum())  # 100 samples, each as heavy as its number says
        assert means == pytest.approx({"loss": 49.5 * square, "accuracy": (0 + 20 + 40 + 60 + 80) / 100})
        assert cluster.evaluate("x", None).value == pytest.approx(alone(torch.zeros(SIZE))[0], rel=1e-13)
        with pytest.raises(KeyError, match="'z'"):
            cluster.validate("z")


def test_a_portion_that_fails_everywhere_is_named_with_its_error(opened: Opener) -> None:
    with opened("tests.support.replicas.works:poisoned", {"bad": 17}) as cluster:
        with pytest.raises(
            ClusterFailedError, match=r"portion \d+ fails on every worker.*sample 17 cannot be read"
        ):
            cluster.evaluate("x", "g")
        cluster.run([Combine("y", ((1.0, "x"),))])  # what the servers have is as it was
        assert torch.equal(cluster.read("y"), torch.zeros(SIZE, dtype=torch.float64))


@pytest.mark.parametrize("travel", ["bunyip", "sandblaster"])
def test_what_is_computed_when_every_worker_is_dead_counts_once_another_is_hired(
    opened: Opener, travel: str
) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.05}
    with opened(arguments=slow, workers=1, restarts=False, point_transfer=travel) as cluster:
        cluster.write("x", some_point())

        def kill(status: ClusterStatus) -> None:
            if status.done > 30:
                os.kill(next(iter(cluster.workers.values())), signal.SIGKILL)
                cluster.watch(None)

        cluster.watch(kill)
        with pytest.raises(ClusterFailedError, match="every worker is dead"):
            cluster.evaluate("x", "g")
        assert torch.equal(cluster.read("x"), some_point())  # as a checkpoint does
        cluster.hire(1)
        value, gradient = alone(some_point())
        assert cluster.evaluate("x", "g").value == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(cluster.read("g"), gradient, rtol=1e-11)
        assert cluster.last is not None and cluster.last.evaluation == 1
        assert cluster.last.account.by_name["worker-1"] > 10


def test_after_trouble_another_evaluation_can_be_asked_for(opened: Opener) -> None:
    with opened("tests.support.replicas.works:poisoned", {"bad": 17}) as cluster:
        with pytest.raises(ClusterFailedError):
            cluster.evaluate("x", "g")
        with pytest.raises(ClusterFailedError, match="cannot be read"):
            cluster.evaluate("x", "g")  # tried again, and no better
        assert cluster.status().evaluation == 1
        good = [each for each in range(50) if 17 not in cluster.portion_samples(each)]
        cluster.replay([format_ranges(good)])
        assert cluster.evaluate("x", "g").samples == sum(map(len, map(cluster.portion_samples, good)))


def test_a_gradient_that_is_no_number_is_seen_in_the_dots(opened: Opener) -> None:
    with opened("tests.support.replicas.works:poisoned", {"bad": 17, "nan": True}) as cluster:
        found = cluster.evaluate("x", "g", after=[Dot("g", "g")])
        assert np.isnan(found.dots[0])


def test_every_worker_dead_is_an_error_that_says_why(opened: Opener) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.01}
    with opened(arguments=slow, restarts=False) as cluster:

        def kill(status: ClusterStatus) -> None:
            for number in cluster.workers.values():
                os.kill(number, signal.SIGKILL)

        cluster.watch(kill)
        with pytest.raises(ClusterFailedError, match=r"every worker is dead.*SIGKILL"):
            cluster.evaluate("x", "g")
        cluster.watch(None)
        assert torch.equal(cluster.read("x"), torch.zeros(SIZE, dtype=torch.float64))


def test_a_dead_server_is_an_error_that_names_it(opened: Opener) -> None:
    with opened(servers=2) as cluster:
        cluster.evaluate("x", "g")
        os.kill(cluster.servers["server-1"], signal.SIGKILL)
        with pytest.raises(ClusterFailedError, match=r"server-1.*SIGKILL"):
            cluster.evaluate("x", "g")
        for again in (lambda: cluster.read("x"), lambda: cluster.run([Dot("x", "x")])):
            with pytest.raises(ClusterFailedError, match="server-1"):
                again()


def test_a_server_that_does_not_answer_is_an_error_that_names_it(opened: Opener) -> None:
    with opened(servers=2, alone_seconds=1.0) as cluster:
        cluster.evaluate("x", "g")
        with stopped(cluster.servers["server-1"]):
            with pytest.raises(ClusterFailedError, match="server-1 has not answered for 1 s"):
                cluster.evaluate("x", "g")
            for again in (lambda: cluster.read("x"), lambda: cluster.run([Dot("x", "x")])):
                with pytest.raises(ClusterFailedError, match="server-1"):
                    again()


@pytest.mark.soak
def test_a_round_that_takes_long_is_waited_for_by_whoever_gives_up_the_evaluation(opened: Opener) -> None:
    with opened(alone_seconds=60.0) as cluster:
        waker = threading.Timer(6.0, os.kill, (cluster.servers["server-0"], signal.SIGCONT))
        os.kill(cluster.servers["server-0"], signal.SIGSTOP)

        def stop(status: ClusterStatus) -> None:
            raise KeyboardInterrupt

        waker.start()
        cluster.watch(stop)
        with pytest.raises(KeyboardInterrupt):
            cluster.evaluate("x", "g")
        waker.join()
        cluster.watch(None)
        assert cluster.run([Dot("x", "x")]) == [0.0]


def test_what_is_raised_while_an_evaluation_is_on_ends_it_and_leaves_the_vectors(opened: Opener) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.01}
    with opened(arguments=slow) as cluster:

        def stop(status: ClusterStatus) -> None:
            raise KeyboardInterrupt

        cluster.watch(stop)
        with pytest.raises(KeyboardInterrupt):
            cluster.evaluate("x", "g")
        cluster.watch(None)
        cluster.write("x", some_point())
        assert cluster.evaluate("x", "g").value == pytest.approx(alone(some_point())[0], rel=1e-13)


def test_who_was_told_to_stop_can_read_and_write_what_a_checkpoint_needs(opened: Opener) -> None:
    with opened(arguments={"samples": PATTERNS, "size": SIZE, "seconds": 0.01}) as cluster:

        def stop(status: ClusterStatus) -> None:
            raise KeyboardInterrupt

        cluster.watch(stop)
        with pytest.raises(KeyboardInterrupt):
            cluster.evaluate("x", "g")
        for _ in range(3):
            time.sleep(0.15)  # longer than from one call to the next
            cluster.write("x", cluster.read("x"))
        assert cluster.validate() is not None


def test_a_validation_without_any_worker_says_so(opened: Opener) -> None:
    with opened(workers=1, restarts=False) as cluster:
        os.kill(next(iter(cluster.workers.values())), signal.SIGKILL)
        with pytest.raises(ClusterFailedError, match="no worker is left"):
            cluster.validate()


def test_a_validation_goes_on_where_what_was_asked_or_answered_is_lost(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(workers=1) as cluster:
        expected = cluster.validate()
        messenger, lost = cluster._coordinator.messenger, []
        send, receive = messenger.send, messenger.receive

        def losing(to: str, message: AnyMessage) -> bool:
            if isinstance(message, m.Validate) and "asked" not in lost:
                lost.append("asked")
                return False
            return send(to, message)

        def losing_answers(timeout: float | None) -> object:
            event = receive(timeout)
            if isinstance(event, Received) and isinstance(event.message, m.Validated) and "told" not in lost:
                lost.append("told")
                return None
            return event

        monkeypatch.setattr(messenger, "send", losing)
        monkeypatch.setattr(messenger, "receive", losing_answers)
        assert cluster.validate() == expected
        assert lost == ["asked", "told"]


def test_unknown_vectors_are_refused_before_anything_is_done(opened: Opener) -> None:
    with opened() as cluster:
        with pytest.raises(KeyError, match="'d'"):
            cluster.evaluate("t", "g", before=[Combine("t", ((1.0, "x"), (0.5, "d")))])
        with pytest.raises(KeyError, match="'t'"):
            cluster.run([Dot("t", "x")])
        with pytest.raises(UserError, match=r"must have shape \(50,\) and type torch\.float64"):
            cluster.write("x", torch.zeros(3))
        assert cluster.run([Dot("x", "x")]) == [0.0]


def test_a_work_that_cannot_be_made_is_the_users_error(opened: Opener) -> None:
    with pytest.raises(UserError, match=r"worker-\d.*no_such_function"):
        opened("tests.support.replicas.works:no_such_function")
    with pytest.raises(MachineError, match=r"worker-\d.*unexpected keyword argument"):
        opened(arguments={"colour": "red"})


def test_a_worker_that_is_asked_to_end_hands_over_what_it_has(opened: Opener) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.004}
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(arguments=slow, events=events, point_transfer="sandblaster") as cluster:
        cluster.evaluate("x", "g")
        os.kill(next(iter(cluster.workers.values())), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while len(cluster.workers) == 2 and time.monotonic() < deadline:
            cluster.evaluate("x", "g")
        assert len(cluster.workers) == 1
        assert [more["portions_lost"] for kind, more in events if kind == "evaluation"][1:] == [0] * (
            len([1 for kind, _ in events if kind == "evaluation"]) - 1
        )


def test_a_worker_that_cannot_be_started_again_is_given_up_with_its_last_words(
    opened: Opener, tmp_path: Path
) -> None:
    given = {"marker": str(tmp_path / "made")}
    with opened("tests.support.replicas.works:once", given, workers=1) as cluster:
        os.kill(next(iter(cluster.workers.values())), signal.SIGKILL)
        with pytest.raises(ClusterFailedError, match=r"every worker is dead.*FileExistsError"):
            cluster.evaluate("x", "g")


def test_without_a_worker_for_a_stated_time_it_is_said_so(opened: Opener) -> None:
    with opened(workers=1, silent_seconds=0.5, alone_seconds=1.0) as cluster:
        cluster.evaluate("x", "g")
        worker = next(iter(cluster.workers.values()))
        with stopped(worker), pytest.raises(ClusterFailedError, match="no worker for 1 s"):
            cluster.evaluate("x", "g")
        assert cluster.evaluate("x", "g").samples == PATTERNS  # it joins again


def test_nobody_is_taken_for_silent_while_nobody_listened(opened: Opener) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(silent_seconds=2.0, events=events) as cluster:
        cluster.evaluate("x", "g")
        time.sleep(2.6)
        cluster.evaluate("x", "g")
        assert [kind for kind, _ in events if kind == "lost"] == []


def test_workers_join_in_the_middle(opened: Opener) -> None:
    slow = {"samples": PATTERNS, "size": SIZE, "seconds": 0.01}
    with opened(workers=1, arguments=slow) as cluster:
        hired: list[int] = []

        def hire(status: ClusterStatus) -> None:
            if not hired:
                hired.append(1)
                cluster.hire(2)

        cluster.watch(hire)
        cluster.evaluate("x", "g")
        cluster.watch(None)
        assert cluster.last is not None and len(cluster.last.account.by_name) > 1
        assert cluster.evaluate("x", "g").value == pytest.approx(alone(torch.zeros(SIZE))[0], rel=1e-13)
        assert cluster.status().workers == 3
