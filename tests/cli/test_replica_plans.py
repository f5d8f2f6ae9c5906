"""Commands that count or predict, for a recipe with replicas."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold
from tests.training.async_sgd.test_strategy import recipe_of


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return recipe_of(tmp_path, "workers = 3, servers = 2", shard_kilobytes=1)


def test_info_counts_the_network_and_names_the_command_that_counts_processes(recipe: Path) -> None:
    said = cotswold("info", recipe)
    assert said.status == 0 and "x: downpour, batches of 16" in said.out
    assert "parameters: 75" in said.out and f"cotswold train {recipe} --dry-run" in said.out


def test_simulate_predicts_a_step_of_one_replica(recipe: Path) -> None:
    said = cotswold("simulate", "ethernet", recipe, "--ranks", 2, "--set", "data.features=5")
    assert said.status == 0 and "x, downpour, batches of 16, on ethernet: one step of one replica" in said.out


def test_the_command_dry_runs_replicas(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = cotswold("train", recipe, "--dry-run", "--json", "--workers", 5)
    assert said.status == 0 and json.loads(said.out)["replicas"] == 5
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("metrics", ["nowhere", "1:2:x", "127.0.0.1:99999"])
def test_a_place_for_metrics_that_is_none_is_refused_with_a_sentence(metrics: str, recipe: Path) -> None:
    said = cotswold("train", recipe, "--metrics", metrics)
    assert said.status == 2 and "is not a port; write a port, such as 9100" in said.error


def test_metrics_of_a_strategy_without_processes_are_refused(tmp_path: Path) -> None:
    said = cotswold("train", "demo", "--run", tmp_path / "run", "--metrics", "9100")
    assert said.status == 2 and "[cluster] is for strategies batch and downpour" in said.error


def test_why_of_what_is_no_run_is_a_sentence(tmp_path: Path) -> None:
    assert "it has no recipe.toml" in cotswold("why", tmp_path).error


@pytest.mark.parametrize("command", ["train", "why", "simulate", "info", "report"])
def test_help_has_examples(command: str) -> None:
    said = cotswold(command, "--help")
    assert said.status == 0 and f"cotswold {command}" in said.out
    assert command != "train" or "downpour" in said.out


def test_a_dry_run_is_told_in_words_and_units_that_fit_eighty_columns(recipe: Path) -> None:
    said = cotswold("train", recipe, "--dry-run", "--workers", 2, "--set", "cluster.heartbeat_timeout=9")
    assert said.status == 0
    lines = said.out.splitlines()
    told = dict(line.split("  ", 1) for line in lines[: lines.index("")])
    assert max(map(len, lines)) <= 80
    assert told["replicas"].strip() == "2" and told["checkpoint"].strip() == "300 B"
    assert re.fullmatch(r" *300 B as gradients; 300 B", told["pushed and pulled per step"])
    assert re.fullmatch(r" *[\d.]+ (ms|s)", told["time of a step"])
    assert re.fullmatch(r" *[\d.]+ MB", told["memory of a replica"])
    table = lines[lines.index("") + 1 :]
    assert table[0] == "placement of each block of parameters:"
    assert any(re.match(r" +layer 1 weight +0 +server-[01] +160 B$", line) for line in table), table


class Screen(StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_list_of_recipes_has_columns_that_a_terminal_cuts_and_a_file_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piped = cotswold("recipe", "list").out.splitlines()
    starts = {
        line.index(strategy) for line in piped for strategy in ("downpour ", "greedy ") if strategy in line
    }
    assert len(starts) == 1 and any(line.endswith("/free-spoken-digits.zip") for line in piped)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tests.support.cli.command.StringIO", Screen)
    said = cotswold("recipe", "list")
    shown = said.out.splitlines()
    cut = sum(line.endswith("…") for line in shown)
    assert cut and f"{cut} lines cut to 80 columns; --json prints everything" in said.err
    assert len(json.loads(cotswold("recipe", "list", "--json").out)["recipes"]) == len(piped) - 1
    assert len(shown) == len(piped) and max(map(len, shown)) <= 80
