"""Strategy batch with samples from data servers: kept in memory, equal to those from the store."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import finish, last, losses
from tests.support.training.small_recipes import supervised
from tests.training.data.test_data_servers import with_servers

from cotswold.errors import MachineError, MemoryLimitError
from cotswold.host import Process
from cotswold.host.process_info import process_tree
from cotswold.run import RunDirectory, Stop
from cotswold.training import open_job
from cotswold.training.data import data_servers as data_feed
from cotswold.training.data import remote as served_patterns

LAYERS = """
[[network.layers]]
type = "convolution"
channels = 4
kernel_size = 3

[[network.layers]]
type = "relu"
"""
CLUSTERS = {
    "one process": "",
    "workers": "[cluster]\nworkers = 2\n",
    "gang": '[cluster]\nworkers = 1\n[mesh]\ngrid = "1x2"\n',
}


def recipe_of(images: Path, more: str) -> str:
    text = supervised(images, layers=LAYERS, more="max_iterations = 4\nportion_size = 7\n")
    alike = "" if "grid" in more else "deterministic = true\n"
    text = text.replace("supervised", "batch").replace("batch_size = 8\nepochs = 4\n", alike)
    return text + more


def trained(recipe: str, folder: Path, stores: Path) -> RunDirectory:
    folder.with_suffix(".toml").write_text(recipe)
    return finish(open_job(folder.with_suffix(".toml"), folder, stores=stores))


@pytest.mark.soak
@pytest.mark.parametrize("where", CLUSTERS)
def test_patterns_from_data_servers_are_the_same(
    where: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(images, CLUSTERS[where])
    alone = trained(recipe, tmp_path / "alone", stores)
    served = trained(with_servers(recipe, 2), tmp_path / "served", stores)
    one, other = (last(run.checkpoints).tensors() for run in (alone, served))
    assert one.keys() == other.keys() and one
    if where == "gang":  # its portions are added up as they come
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
        assert losses(served) == pytest.approx(losses(alone), rel=1e-5)
        return
    assert all(torch.equal(other[name], value) for name, value in one.items())
    assert losses(served) == losses(alone)


@pytest.mark.parametrize(("where", "copies"), [("one process", 1), ("workers", 2), ("gang", 2)])
def test_the_copies_of_all_processes_of_a_host_are_to_fit_into_its_memory(
    where: str,
    copies: int,
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, path, needed = recipe_of(images, CLUSTERS[where]), tmp_path / "run.toml", list[int]()
    path.write_text(recipe)
    store = open_job(path, tmp_path / "alone", stores=stores).store
    path.write_text(with_servers(recipe, 2))

    def require(needed_bytes: int, what: str, remedy: str) -> None:
        needed.append(needed_bytes)
        raise MemoryLimitError(what)

    monkeypatch.setattr(served_patterns, "require_memory", require)
    with pytest.raises(MemoryLimitError, match="as data servers make them"):
        open_job(path, tmp_path / "run", stores=stores)
    assert needed == [copies * store.splits["train"] * 4 * store.shape.size]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["one process", "workers"])
def test_a_run_all_of_whose_data_servers_are_dead_ends_in_a_sentence(
    where: str, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headed = data_feed.head

    def shortly(*given: Any, **more: Any) -> tuple[ExitStack, Process]:
        things, head = headed(*given, **more)
        place = given[-1]
        assert isinstance(place, Path)
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in process_tree(head.pid):
            assert process > 1, "0 would be this process's own group"
            os.kill(process, signal.SIGKILL)
        return things, head

    monkeypatch.setattr(data_feed, "head", shortly)
    job_recipe = with_servers(recipe_of(images, CLUSTERS[where]), 2)
    (tmp_path / "run.toml").write_text(job_recipe)
    job = open_job(tmp_path / "run.toml", tmp_path / "run", stores=stores)
    began = time.monotonic()
    with pytest.raises(MachineError, match="data server"):
        job.train(lambda event: None, Stop())
    assert time.monotonic() - began < 90
