"""Output of `--dry-run` for a run with replicas, compared with the run itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.training.runs import events
from tests.training.async_sgd.test_strategy import job_of, recipe_of

from cotswold.api.plan import base as planned
from cotswold.api.plan.dry_run import plan
from cotswold.errors import MachineError
from cotswold.replication.client.admin import AdminClient
from cotswold.run import Stop
from cotswold.wire import ReplicaServerStatus, StatusReply

SIZE = 5 * 8 + 8 + 8 * 3 + 3


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "MEASURED_SECONDS", 0.01)


def planned_for(
    folder: Path, cluster: str = "workers = 2, servers = 2", *more: str, **training: object
) -> Any:
    return plan(recipe_of(folder, cluster, **{"shard_kilobytes": 1, **training}), overrides=list(more))


def test_the_routing_table_has_every_number_once(tmp_path: Path) -> None:
    found = planned_for(tmp_path, "workers = 3, servers = 2")
    assert found["processes"] == 1 + 2 + 3 + 1, "servers, replicas, and who judges"
    assert found["parameters"] == SIZE and found["samples"] == 240
    routing = found["routing"]
    assert sum(row["bytes"] for row in routing) == 4 * SIZE
    assert len({(row["tensor"], row["block"]) for row in routing}) == len(routing) == found["shards"]
    by_server: Counter[str] = Counter()
    for row in routing:
        by_server[row["server"]] += row["bytes"]
    assert by_server == found["server_bytes"]


def test_of_a_cluster_that_stands_it_is_said_what_is_there_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(AdminClient):
        def __init__(self, *looked: ReplicaServerStatus) -> None:
            self._looked = StatusReply("controller-a", 1, 3, 1, looked, (), (), 0, ())

        def status(self, bucket: str = "") -> StatusReply:
            return self._looked

        def close(self) -> None:
            """Do nothing: there are no calls."""

    def planned_on(*servers: ReplicaServerStatus) -> Any:
        monkeypatch.setattr(
            "cotswold.api.servers.cluster_admin.operator", lambda controllers: Asked(*servers)
        )
        return planned_for(tmp_path, "workers = 2", "cluster.controllers=127.0.0.1")

    living = [ReplicaServerStatus(name, "a", "", "living", 0.1, 0, 0) for name in ("a-0", "a-1")]
    found = planned_on(*living, ReplicaServerStatus("gone", "b", "", "gone", 9.0, 0, 0))
    assert found["processes"] == 1 + 2 + 1 and found["servers"] == 0 and "server_bytes" not in found
    assert found["parameter_servers"] == (
        "2 servers on 1 host, 2 copies of each part, no other run; 3 copies are configured, each on its "
        "own server"
    )
    assert found["copy_memory_bytes"] == 3 * 4 * SIZE and found["cluster_memory_bytes"] == 6 * 4 * SIZE
    assert found["cluster_server_memory_bytes"] == 3 * 4 * SIZE
    assert len({row["server"] for row in found["routing"]}) == found["parts_of_parameters"]
    assert "the cluster has no servers" in planned_on()["parameter_servers"]


def test_that_nobody_answers_for_a_cluster_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(controllers: str) -> AdminClient:
        raise MachineError(f"no controller at {controllers} has answered for 5 s")

    monkeypatch.setattr("cotswold.api.servers.cluster_admin.operator", nobody)
    found = planned_for(
        tmp_path, "workers = 2", "cluster.controllers=127.0.0.1", "cluster.unavailable_timeout=60"
    )
    assert found["parameter_servers"] == (
        "the cluster does not answer: no controller at 127.0.0.1 has answered for 5 s"
    )


def test_bytes_and_flops_of_a_step_follow_the_pace_and_the_rule(tmp_path: Path) -> None:
    found = planned_for(tmp_path, push_every=2, pull_every=4, update_rule="adagrad")
    assert found["step_bytes"] == {"push": {"gradient": 4 * SIZE / 2}, "pull": 4 * SIZE / 4}
    assert found["checkpoint_bytes"] == 2 * 4 * SIZE
    assert found["step_flops"] == 16 * (4 * 5 * 8 + 6 * 8 * 3)
    assert found["run_flops"] == 4 * 240 * (4 * 5 * 8 + 6 * 8 * 3) and found["steps_per_epoch"] == 15


def test_what_goes_as_factors_or_as_steps_is_told_by_kind(tmp_path: Path) -> None:
    weights, biases = 4 * (5 * 8 + 8 * 3), 4 * (8 + 3)
    whole = planned_for(tmp_path, "workers = 2", push_format="gradient")["step_bytes"]["push"]
    assert whole == {"gradient": weights + biases}
    factors = planned_for(tmp_path, "workers = 2", push_format="factors")["step_bytes"]["push"]
    assert factors == {"gradient": biases, "factors": 4 * 16 * (5 + 8 + 8 + 3)}
    steps = planned_for(tmp_path, "workers = 2", update_rule="deltas", push_every=4)["step_bytes"]["push"]
    assert steps == {"delta": (weights + biases) / 4}


def test_each_rank_of_a_replica_has_a_port(tmp_path: Path) -> None:
    away = ["cluster.ray_address=here:1", "cluster.ports=30000-30099"]
    alone, gangs = (
        planned_for(tmp_path, "workers = 2, servers = 2", *away, *more)["ports"]
        for more in ([], ["mesh.grid=1x2"])
    )
    assert alone.startswith("5 TCP ports") and gangs.startswith("7 TCP ports")


def test_money_is_said_where_there_is_a_price_and_the_limits_hold(tmp_path: Path) -> None:
    assert "dollars" not in planned_for(tmp_path)
    priced = planned_for(tmp_path, "workers = 2", "price.rent_dollars_per_hour=36.0")
    assert priced["dollars"] == pytest.approx(priced["run_seconds"] / 100)
    limited = planned_for(
        tmp_path, "workers = 2", "price.rent_dollars_per_hour=36.0", "price.max_hours=0.001"
    )
    assert limited["limit_seconds"] == pytest.approx(3.6) and limited["dollars"] == pytest.approx(0.036)
    assert "4000 processes would share" in planned_for(tmp_path, "workers = 4000")["workers_are"]


def test_shards_lie_on_real_servers_as_the_plan_says(tmp_path: Path) -> None:
    shown: list[Mapping[str, Any]] = []

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "replicas":
            shown.append(event)

    found = planned_for(tmp_path)
    job = job_of(tmp_path, "workers = 2, servers = 2", shard_kilobytes=1)
    assert job.train(watch=watch, stop=Stop())
    there = {row["name"]: row["shards"] for row in shown[-1]["servers"]}
    assert there == Counter(row["server"] for row in found["routing"])
    (end,) = events(job.run, "end")
    assert end["flops"] == end["samples"] * found["step_flops"] // 16


@pytest.mark.soak
def test_a_run_ends_at_its_limit_of_money_and_goes_on(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "workers = 2", epochs=100_000)
    recipe.write_text(
        f"{recipe.read_text()}\nprice = {{ rent_dollars_per_hour = 3600.0, max_dollars = 8.0 }}\n"
    )
    from cotswold.training import open_job

    job = open_job(recipe, tmp_path / "run", stores=tmp_path / "stores")
    stop = Stop()
    assert not job.train(watch=lambda event: None, stop=stop) and stop.is_limited
    (end,) = events(job.run, "end")
    assert end["status"] == "limited" and "max_dollars" in str(end["reason"])
    assert events(job.run, "checkpoint") or not end["samples"], "it was saved"
