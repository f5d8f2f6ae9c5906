"""`cotswold worker`, and the options of `cotswold train` for whole-set optimisation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.cli.command import cotswold

from cotswold.api.plan.dry_run import plan
from cotswold.api.servers.worker_host import run_worker_host
from cotswold.errors import UserError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "either --head, on the first machine, or --address"),
        ({"address": "here:1", "head": True}, "either --head, on the first machine, or --address"),
        ({"address": "here:1", "port": 3}, "port applies to the head"),
        ({"head": True, "cores": 0}, "cores must be at least 1"),
        ({"head": True}, "need the same secret"),
        ({"head": True, "ports": "1-x"}, "'1-x' is not a range of ports; write the first and the last"),
        (
            {"head": True, "token_file": Path("/nope")},
            "/nope does not exist; make the secret once, openssl",
        ),
    ],
)
def test_a_machine_that_cannot_join_is_told_why(
    words: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTSWOLD_TOKEN", raising=False)
    given: dict[str, object] = {
        "head": False,
        "port": None,
        "cores": None,
        "ports": None,
        "token_file": None,
        **words,
    }
    address = given.pop("address", None)
    with pytest.raises(UserError, match=said):
        run_worker_host(address, show=lambda line: None, **given)  # type: ignore[arg-type]  # one word after the other


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 400)).astype(np.float32))
    np.save(tmp_path / "x.labels.npy", np.arange(200) % 5)
    (tmp_path / "x.toml").write_text(
        f'name = "x"\ndata = {{ type = "vectors", source = "{tmp_path}/x.npy", labels = "file" }}\n'
        'network = { layers = [{ type = "linear", features = 480 }, { type = "tanh" }] }\n'
        'training = { strategy = "batch", max_iterations = 2, history_size = 4 }\n'
        "price = { rent_dollars_per_hour = 2.0 }\n"
    )
    return tmp_path / "x.toml"


def test_a_dry_run_counts_processes_bytes_memory_and_money(recipe: Path) -> None:
    found = plan(recipe, overrides=["cluster.workers=3", "cluster.servers=2", "price.max_hours=1"])
    size = 400 * 480 + 480 + 480 * 5 + 5
    assert found["processes"] == 1 + 2 + 3 and found["parameters"] == size and found["samples"] == 190
    assert found["vectors"] == 5 + 2 * 5 and found["vectors_bytes"] == 15 * 4 * size
    assert found["evaluation_flops"] == 190 * (4 * 400 * 480 + 6 * 480 * 5)
    assert found["evaluation_wire_bytes"] == 2 * 3 * 4 * size
    assert 0 < float(str(found["dollars"])) <= 2.0 and found["limit_seconds"] == 3600
    assert "dollars" not in plan(recipe, overrides=["price={}"])
    alone, more, crowd = (plan(recipe, overrides=[f"cluster.workers={each}"]) for each in (1, 2, 4000))
    times = ("start_seconds", "evaluation_seconds", "evaluations_expected", "run_seconds")
    start, evaluation, times_over, run = (float(str(more[each])) for each in times)
    assert start > float(str(alone["start_seconds"])) > 0 and evaluation > 0.01
    assert run == pytest.approx(start + times_over * evaluation)
    assert "workers_are" not in alone and "4000 processes would share" in str(crowd["workers_are"])
    away = ["cluster.ray_address=here:1", "cluster.ports=30000-30099"]
    words = "2 TCP ports, one per process, of 30000-30099 of its machine, encrypted"
    assert str(plan(recipe, overrides=[*away, "cluster.servers=1"])["ports"]).startswith(f"3{words[1:]}")


def test_a_dry_run_counts_the_ranks_of_replicas(recipe: Path) -> None:
    assert plan(recipe, overrides=["mesh.grid=1x2"])["processes"] == 1 + 1 + 2
    assert plan(recipe, overrides=["mesh.grid=1x2", "cluster.workers=3"])["processes"] == 1 + 1 + 3 * 2


def test_a_dry_run_counts_no_more_flops_than_the_run_may_take(recipe: Path) -> None:
    found = plan(recipe, overrides=["training.max_iterations=1000", "training.max_flops=1e9"])
    assert found["run_flops"] == pytest.approx(1e9) and float(str(found["evaluations_expected"])) < 10


def test_the_command_dry_runs_and_stops_at_its_limit(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dry = cotswold("train", recipe, "--dry-run", "--json", "--workers", 2)
    assert dry.status == 0 and json.loads(dry.out)["workers"] == 2
    assert not (tmp_path / "runs").exists()
    limited = cotswold("train", recipe, "--max-hours", "1e-9", "--threads", 1)
    assert limited.status == 0
    assert "price.max_hours = 1e-09 is reached; saved; resume with a higher limit" in limited.err
