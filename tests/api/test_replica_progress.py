"""Display of a run with real replicas and their real counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.training.runs import events, finish
from tests.training.async_sgd.test_strategy import job_of

from cotswold.run import Stop


@pytest.mark.soak
def test_what_is_shown_adds_up_to_what_the_ledger_and_the_servers_count(tmp_path: Path) -> None:
    shown: list[Mapping[str, Any]] = []

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "replicas":
            shown.append(event)

    job = job_of(tmp_path, "workers = 2, servers = 2", epochs=80, shard_kilobytes=1)
    assert job.train(watch=watch, stop=Stop())
    assert {row["name"] for event in shown for row in event["replicas"]} >= {"replica-1", "replica-2"}
    assert "training" in {event["activity"] for event in shown}
    told = [event for event in shown if event["activity"] == "training"]
    for event in told:
        samples = event["samples"]
        settled = samples["counted"] + samples["torn"] + samples["refused"] + samples["lost"]
        assert samples["handed_out"] == settled + event["samples_in_flight"]
        assert sum(row["samples_in_flight"] for row in event["replicas"]) == event["samples_in_flight"]
    counted = max(event["samples"]["counted"] for event in shown)
    computed = max(sum(row["samples"] for row in event["replicas"]) for event in shown)
    assert 0 < computed <= 80 * 240 and counted > 0
    assert any(row["updates_per_second"] > 0 for event in told for row in event["servers"])
    assert any(row["samples_per_second"] > 0 for event in told for row in event["replicas"])
    (server, other) = told[-1]["servers"]
    assert server["shards"] + other["shards"] == 4
    steps = events(job.run, "step")
    assert steps[-1]["samples_counted"] == events(job.run, "phase_end")[0]["samples_counted"]
    assert steps[-1]["replicas"] == 2, "those that learnt, though all have gone"
    assert events(job.run, "end")[0]["staleness"] == pytest.approx(steps[-1]["staleness"])
    assert not events(job.run, "replicas"), "what is of interest for a moment is not kept"


def test_tensorboard_has_the_curves_of_replicas(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = finish(job_of(tmp_path, "workers = 2"))
    found = accumulator.EventAccumulator(str(run.tensorboard)).Reload()
    names = (
        "loss",
        "accuracy",
        "staleness",
        "samples_per_second",
        "replicas",
        "queued_bytes",
        "samples_counted",
    )
    assert {f"phase layers step/{name}" for name in names} <= set(found.Tags()["scalars"])
    assert {"phase layers validation/loss", "phase layers validation/accuracy"} <= set(
        found.Tags()["scalars"]
    )
    (last,) = [each.value for each in found.Scalars("phase layers step/samples_counted")][-1:]
    assert last == events(run, "phase_end")[0]["samples_counted"]
