"""Dry runs of strategies without servers: steps, memory and times of greedy, joint and supervised runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cli.command import cotswold
from tests.support.demo_runs import DemoRuns

from cotswold.api.info import info
from cotswold.api.plan.dry_run import plan
from cotswold.api.plan.local import plan_row, steps_of
from cotswold.geometry import Grid
from cotswold.recipe import load


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRuns:
    made = DemoRuns(tmp_path_factory.mktemp("dry"))
    made.write()
    return made


def planned(recipe: Path, *overrides: str) -> Any:
    return plan(recipe, overrides=list(overrides))


def test_a_greedy_run_counts_the_steps_of_each_stack(demo: DemoRuns) -> None:
    found = planned(demo.stacks_recipe, "training.epochs=3", "training.batch_size=4")
    recipe = load(demo.stacks_recipe, ["training.epochs=3", "training.batch_size=4"])
    steps = steps_of(recipe, found["samples"])
    assert len(steps) == len(recipe.network.stacks) == 2
    assert found["steps"] == sum(steps) and found["steps_of_stacks"] == ", ".join(map(str, steps))
    assert found["ranks"] == 1 and found["run_seconds"] > 0 and found["rank_memory_bytes"] > 200 << 20
    assert found["run_flops"] > 0


def test_a_joint_run_has_one_number_of_steps(demo: DemoRuns) -> None:
    found = planned(demo.stacks_recipe, "training.strategy=joint")
    assert found["strategy"] == "joint" and "steps_of_stacks" not in found and found["run_seconds"] > 0


def test_a_supervised_run_counts_updates_of_accumulated_batches(demo: DemoRuns) -> None:
    one = planned(demo.layers_recipe, "training.batch_size=4")
    two = planned(demo.layers_recipe, "training.batch_size=4", "training.accumulate=2")
    assert two["steps"] == pytest.approx(one["steps"] / 2, abs=one["steps"] / 4)
    assert two["step_flops"] == 2 * one["step_flops"]


def test_the_work_of_a_run_is_that_of_its_batches_however_many_a_step_has(demo: DemoRuns) -> None:
    words = ["training.batch_size=10", "training.epochs=3"]
    one = planned(demo.layers_recipe, *words)
    known = info(demo.layers_recipe, overrides=[*words, "training.accumulate=3"])
    several, batches = plan_row(known, Grid(1, 1)), one["samples"] // 10
    assert batches % 3, "the last step of an epoch has fewer batches"
    assert (one["steps"], several["steps"]) == (3 * batches, 3 * (batches // 3 + 1))
    assert several["run_flops"] == one["run_flops"] == 3 * batches * one["step_flops"]
    assert several["run_seconds"] == pytest.approx(3 * batches * known.totals["update_seconds"])


def test_a_grid_has_less_memory_in_each_rank_and_no_measured_time(demo: DemoRuns) -> None:
    found = planned(demo.stacks_recipe, "mesh.grid=1x2")
    assert (found["grid"], found["ranks"]) == ("1x2", 2)
    assert "run_seconds" not in found and found["times_are"] == "predicted by cotswold simulate"
    assert found["rank_memory_bytes"] < planned(demo.stacks_recipe)["rank_memory_bytes"]


def test_a_price_gives_the_cost(demo: DemoRuns) -> None:
    found = planned(demo.stacks_recipe, "price.rent_dollars_per_hour=36")
    assert found["dollars"] == pytest.approx(found["run_seconds"] / 100)


def test_the_command_prints_the_plan_in_eighty_columns_and_trains_nothing(
    demo: DemoRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cotswold("train", demo.stacks_recipe, "--dry-run", "--grid", "2x1")
    assert said.status == 0 and not (tmp_path / "runs").exists()
    assert max(map(len, said.out.splitlines())) <= 80
    assert any(line.split() == ["grid", "2x1"] for line in said.out.splitlines())


def test_a_missing_source_is_named(demo: DemoRuns) -> None:
    said = cotswold("train", demo.stacks_recipe, "--dry-run", "--set", "data.source=nowhere")
    assert said.status == 2 and "cannot be counted: nowhere does not exist" in said.error
