"""Runs with batches from data servers: the same weights from any server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.training.runs import bits, finish, losses, recipe_of, resumed, started
from tests.support.training.small_recipes import greedy, supervised

from cotswold.data import Store
from cotswold.data.loading.reader import stored_bytes
from cotswold.data.loading.served_store import ServedStore
from cotswold.errors import MachineError, RecipeError
from cotswold.host.process_info import process_tree
from cotswold.run import RunDirectory, Stop, recorder
from cotswold.training.data import data_servers as data_feed
from cotswold.training.data.stores import warnings

pytestmark = pytest.mark.usefixtures("template")  # they look at the tree of processes


def with_servers(recipe: str, servers: object) -> str:
    value = f'"{servers}"' if isinstance(servers, str) else servers
    if "[data]" in recipe:
        return recipe.replace("[data]\n", f"[data]\nservers = {value}\n")
    return recipe.replace("data = { ", f"data = {{ servers = {value}, ")


def children() -> set[int]:
    """Return the descendants of this process."""
    return set(process_tree(os.getpid())[1:])


def logs(run: RunDirectory) -> set[str]:
    """Return the data servers that a run has started, by their logs."""
    return {each.stem for each in (run.path / "data-servers").glob("data-server-*.log")}


def fails(**told: object) -> None:
    """Fail as the work of a data server that cannot start."""
    raise MachineError("the disk of the samples is on holiday")


@pytest.mark.parametrize("kind", ["greedy", "joint", "supervised"])
def test_a_run_with_data_servers_learns_the_same_bits_as_without(
    kind: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = supervised(images) if kind == "supervised" else greedy(images, strategy=kind)
    alone = finish(started(recipe, tmp_path / "alone", stores))
    before = children()
    served = finish(started(with_servers(recipe, 2), tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]
    assert losses(served) == losses(alone)
    assert logs(served) == {"data-server-1", "data-server-2"} and not logs(alone)
    assert children() <= before, "they end with the run"
    told = (served.path / "data-servers" / "head.log").read_text()
    assert "data-server-1 serves" in told and "data-server-2 serves" in told


def test_data_servers_vary_samples_as_the_run_would(images: Path, stores: Path, tmp_path: Path) -> None:
    plain = supervised(images)
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
    assert logs(served) == {"data-server-1", "data-server-2"}
    assert losses(served) != losses(finish(started(plain, tmp_path / "plain", stores)))


def test_a_run_with_data_servers_goes_on_where_it_was_stopped(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    alone = finish(started(supervised(images), tmp_path / "alone", stores))
    job = started(with_servers(supervised(images), 1), tmp_path / "served", stores)
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 9:
            stop.signal = signal.SIGINT

    assert not job.train(watch, stop)
    assert logs(job.run) == {"data-server-1"}
    served = finish(resumed(tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["greedy", "supervised"])
def test_a_run_whose_data_servers_are_lost_keeps_what_it_learnt(
    kind: str, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "EVENT_SECONDS", 0.0)  # each step is an event
    recipe = (
        recipe_of(kind, images).replace("epochs = 4", "epochs = 30").replace("epochs = 2.4", "epochs = 20")
    )
    alone = finish(started(recipe, tmp_path / "alone", stores))
    before, steps = children(), list[int]()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step":
            steps.append(int(str(event["step"])))
        if len(steps) == 9:
            for process in children() - before:
                os.kill(process, signal.SIGKILL)

    job = started(with_servers(recipe, 2), tmp_path / "served", stores)
    with pytest.raises(MachineError, match=r"resume the run: cotswold train --run \S+ --resume$"):
        job.train(watch, Stop())
    assert 9 <= bits(job.run)[1]["position"]["total"] == steps[-1] < 100
    served = finish(resumed(tmp_path / "served", stores))
    assert bits(served)[0] == bits(alone)[0]


class Lingering(ServedStore):
    """A store whose data server ends slowly: a process that it has forked holds its files a little longer."""

    @property
    def terms(self) -> str:
        server = os.getpid()
        if os.fork() == 0:
            while os.getppid() == server:
                time.sleep(0.01)
            time.sleep(0.5)
            os._exit(0)
        return super().terms


def lingering(store: str, cache_bytes: int, augmentation_json: str) -> ServedStore:
    return Lingering(Store(store), cache_bytes, augmentation_json)


@pytest.mark.parametrize("work", ["build_served_store", "lingering"])
def test_a_run_leaves_no_folder_of_its_data_servers_behind(
    work: str, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if work == "lingering":
        monkeypatch.setattr(data_feed, "WORK", f"{__name__}:lingering")
    with TemporaryDirectory(prefix="r-", dir="/tmp") as folder:  # its paths are short enough for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        finish(started(with_servers(supervised(images), 1), tmp_path / "run", stores))
        assert list(Path(folder).glob("cotswold-*")) == []
        assert logs(RunDirectory(tmp_path / "run")) == {"data-server-1"}


def test_why_no_data_server_starts_is_said_and_where_more_is_written(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_feed, "WORK", f"{__name__}:fails")
    job = started(with_servers(supervised(images), 1), tmp_path / "run", stores)
    with pytest.raises(MachineError) as found:
        finish(job)
    assert "every data server has exited" in str(found.value)
    assert "the disk of the samples is on holiday" in str(found.value)
    assert str(tmp_path / "run" / "data-servers") in str(found.value)


def test_a_run_whose_pool_is_not_there_says_so(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_TOKEN", "0" * 64)
    with pytest.raises(MachineError, match=r"cannot be reached.*the data servers at 127\.0\.0\.1:9$"):
        started(with_servers(supervised(images), "127.0.0.1:9"), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("servers", "match"), [("nowhere", "HOST:PORT"), (-1, "servers"), ("host:99999", "HOST:PORT")]
)
def test_what_names_no_data_servers_is_refused(
    servers: object, match: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=match):
        started(with_servers(supervised(images), servers), tmp_path / "run", stores)


def test_a_run_warns_of_a_cache_that_is_too_small(images: Path, stores: Path, tmp_path: Path) -> None:
    recipe = with_servers(supervised(images), 1)
    job = started(recipe, tmp_path / "run", stores)
    assert not any("data.cache" in each for each in warnings(job.recipe, job.store))
    data = job.recipe.data.model_copy(update={"cache": "1 B"})
    (found,) = warnings(job.recipe.model_copy(update={"data": data}), job.store)[-1:]
    assert "read shards repeatedly" in found and 'data.cache = "1 B"' in found


@pytest.mark.parametrize("strategy", ["batch", "downpour"])
def test_what_a_run_warns_of_a_cache_is_true_of_its_order(
    strategy: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    text = with_servers(supervised(images, layers='[[network.layers]]\ntype = "relu"'), 1).replace(
        '"supervised"', f'"{strategy}"'
    )
    if strategy == "batch":
        text = text.replace("batch_size = 8\nepochs = 4\n", "")
    job = started(text, tmp_path / "run", stores)
    samples = job.store.splits["train"] * stored_bytes(job.store)

    def said(cache: int) -> list[str]:
        data = job.recipe.data.model_copy(update={"cache": f"{cache} B"})
        found = warnings(job.recipe.model_copy(update={"data": data}), job.store)
        return [each for each in found if "data.cache" in each]

    assert said(samples) == []
    less = said(samples - 1)
    if strategy == "batch":
        assert less == [], "each sample is asked for once"
    else:
        assert len(less) == 1 and "dealt at random" in less[0]
