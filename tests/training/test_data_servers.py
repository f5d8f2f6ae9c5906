"""Runs whose batches data servers make: the same weights, whoever makes them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.training.runs import bits, finish, losses, resumed, started
from tests.training.small import greedy, supervised

from cotswold.errors import MachineError, RecipeError
from cotswold.host.process import family
from cotswold.run import Stop


def with_servers(recipe: str, servers: object) -> str:
    value = f'"{servers}"' if isinstance(servers, str) else servers
    if "[data]" in recipe:
        return recipe.replace("[data]\n", f"[data]\nservers = {value}\n")
    return recipe.replace("data = { ", f"data = {{ servers = {value}, ")


def data_servers() -> list[int]:
    """Processes of this host that this one has started, the youngest last."""
    return family(os.getpid())[1:]


@pytest.mark.parametrize("kind", ["greedy", "joint", "supervised"])
def test_a_run_with_data_servers_learns_the_same_bits_as_without(
    kind: str, pictures: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = supervised(pictures) if kind == "supervised" else greedy(pictures, strategy=kind)
    alone = finish(started(recipe, tmp_path / "alone", stores))
    before = set(data_servers())
    served = finish(started(with_servers(recipe, 2), tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]
    assert losses(served) == losses(alone)
    assert set(data_servers()) <= before, "they end with the run"


def test_data_servers_vary_samples_as_the_run_would(pictures: Path, stores: Path, tmp_path: Path) -> None:
    plain = supervised(pictures)
    varied = (
        plain
        + """
[[data.augment]]
name = "rotation"
degrees = 20.0

[[data.augment]]
name = "elastic"
alpha = 8.0
sigma = 2.0
"""
    )
    alone = finish(started(varied, tmp_path / "alone", stores))
    served = finish(started(with_servers(varied, 2), tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]
    assert losses(served) != losses(finish(started(plain, tmp_path / "plain", stores)))


@pytest.mark.parametrize("strategy", ["downpour", "batch"])
def test_strategies_whose_workers_read_for_themselves_refuse_data_servers(
    strategy: str, pictures: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = with_servers(supervised(pictures), 2).replace("batch_size = 8\nepochs = 4\n", "")
    with pytest.raises(RecipeError, match="read for themselves"):
        started(recipe.replace('"supervised"', f'"{strategy}"'), tmp_path / "run", stores)


def test_a_run_goes_on_with_another_number_of_data_servers(
    pictures: Path, stores: Path, tmp_path: Path
) -> None:
    alone = finish(started(supervised(pictures), tmp_path / "alone", stores))
    job = started(with_servers(supervised(pictures), 1), tmp_path / "served", stores)
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 9:
            stop.signal = signal.SIGINT

    assert not job.train(watch, stop)
    served = finish(resumed(tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]


def test_a_run_whose_pool_is_not_there_says_so(
    pictures: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(with_servers(supervised(pictures), "127.0.0.1:9"), tmp_path / "run", stores)
    monkeypatch.setenv("COTSWOLD_TOKEN", "0" * 64)
    with pytest.raises(MachineError, match=r"the data servers at 127\.0\.0\.1:9"):
        finish(job)


@pytest.mark.parametrize(
    ("servers", "match"), [("nowhere", "HOST:PORT"), (-1, "servers"), ("host:99999", "HOST:PORT")]
)
def test_what_names_no_data_servers_is_refused(
    servers: object, match: str, pictures: Path, stores: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=match):
        started(with_servers(supervised(pictures), servers), tmp_path / "run", stores)
