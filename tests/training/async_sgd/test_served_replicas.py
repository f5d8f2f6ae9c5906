"""Replicas with samples from data servers: the same bits, exact counts, a message if all servers are dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, events, finish, last, losses
from tests.support.training.small_recipes import supervised
from tests.training.data.test_data_servers import children, with_servers

from cotswold.data import Store
from cotswold.data.loading.served_store import augmentation_to_json
from cotswold.dataservice.runtime.pool import PoolSettings
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer, Process, Token, token_of
from cotswold.host.ipc.shared_memory import is_supported
from cotswold.host.process_info import process_tree
from cotswold.host.token import VARIABLE
from cotswold.recipe import dump, load
from cotswold.replicas.replicas import Replicas, open_replicas
from cotswold.run import RunDirectory, Stop
from cotswold.testing.processes import ended
from cotswold.training import Resume, open_job
from cotswold.training.async_sgd import strategy as downpour
from cotswold.training.data import data_servers as data_feed
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.indexed import write_rows
from cotswold.training.data.remote import PoolLocation
from cotswold.transport.address import Address
from lib.hogwild_training import Steps, train

pytestmark = pytest.mark.usefixtures("template")  # they look at the tree of processes

LAYERS = """
[[network.layers]]
type = "convolution"
channels = 4
kernel_size = 3

[[network.layers]]
type = "relu"
"""
VARIED = """
[[data.augment]]
name = "rotation"
degrees = 20.0

[[data.augment]]
name = "elastic"
alpha = 8.0
sigma = 2.0
"""


def recipe_of(images: Path, cluster: str = "workers = 1", more: str = "", data: str = "") -> str:
    """Return a recipe of replicas over 38 images; one replica has the bits of SGD."""
    text = supervised(images, layers=LAYERS, more=f"max_staleness = 0\nepoch_fraction = 1.0\n{more}")
    return f"{text.replace('supervised', 'downpour')}{data}\n[cluster]\n{cluster}\n"


def trained(recipe: str, folder: Path, stores: Path) -> RunDirectory:
    file = folder.with_suffix(".toml")
    file.write_text(recipe)
    return finish(open_job(file, folder, stores=stores))


def weights(run: RunDirectory) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in last(run.checkpoints).tensors().items()}


@pytest.mark.soak
def test_a_replica_with_data_servers_learns_the_same_bits_as_without(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    for name, more in (("plain", ""), ("varied", VARIED)):
        recipe = recipe_of(images, data=more)
        alone = trained(recipe, tmp_path / f"{name}-alone", stores)
        before = children()
        served = trained(with_servers(recipe, 2), tmp_path / f"{name}-served", stores)
        assert weights(served) == weights(alone)
        assert losses(served)[-1] == losses(alone)[-1]
        assert children() <= before, "they end with the run"
        assert not (served.path / "rows").exists(), "nobody reads them"


class Known:
    """The processes of a run: its replicas, by name, and the head of its pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replicas: Replicas | None = None
        self.head: Process | None = None
        opened, headed = open_replicas, data_feed.head

        def open_known(*given: Any, **more: Any) -> Replicas:
            self.replicas = opened(*given, **more)
            return self.replicas

        def head_known(*given: Any, **more: Any) -> tuple[ExitStack, Process]:
            things, self.head = headed(*given, **more)
            return things, self.head

        monkeypatch.setattr(downpour, "open_replicas", open_known)
        monkeypatch.setattr(data_feed, "head", head_known)

    @property
    def replica(self) -> int:
        """A running replica."""
        assert self.replicas is not None
        return max(self.replicas.replicas.values())

    @property
    def pool(self) -> list[int]:
        """The head, the fork server, and the data servers."""
        assert self.head is not None
        return process_tree(self.head.pid)


def kill(process: int) -> int:
    assert process > 1, "0 would be this process's own group"
    os.kill(process, signal.SIGKILL)
    return process


def counted(run: RunDirectory, samples: int) -> Mapping[str, int]:
    """Return the account of all samples in the newest checkpoint, after checking that it is complete."""
    total: dict[str, int] = {}
    for account in bits(run)[1]["strategy"]["ledger"]["accounts"].values():
        for name, value in account.items():
            total[name] = total.get(name, 0) + value
    assert total["handed_out"] == total["counted"] + total["torn"] + total["refused"] + total["lost"]
    assert samples == total["counted"] + total["torn"] + total["refused"] + total["left_out"]
    return total


@pytest.mark.soak
def test_replicas_and_data_servers_are_killed_and_every_sample_counts_once(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, killed, samples = Known(monkeypatch), list[int](), list[int]()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "cluster_epoch" and len(killed) < 4:
            killed.append(kill(known.replica if len(killed) % 2 == 0 else known.pool[-1]))

    recipe = recipe_of(images, "workers = 2", data=VARIED).replace("epochs = 4", "epochs = 40")
    (tmp_path / "run.toml").write_text(with_servers(recipe, 2))
    job = open_job(tmp_path / "run.toml", tmp_path / "run", stores=stores)
    samples.append(40 * job.store.splits["train"])
    assert job.train(watch, Stop())
    total = counted(job.run, samples[0])
    assert len(killed) == 4
    assert total["counted"] + total["torn"] == samples[0], "none is left out"
    ends = [str(event["reason"]) for event in events(job.run, "cluster_exited")]
    assert sum("SIGKILL" in why for why in ends) >= 2, ends


@pytest.mark.soak
def test_a_run_all_of_whose_data_servers_are_dead_ends_in_a_sentence(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, began = Known(monkeypatch), list[float]()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "cluster_epoch" and not began:
            began.append(time.monotonic())
            for process in known.pool:
                kill(process)

    recipe = recipe_of(images, "workers = 2").replace("epochs = 4", "epochs = 4000")
    (tmp_path / "run.toml").write_text(with_servers(recipe, 2))
    job = open_job(tmp_path / "run.toml", tmp_path / "run", stores=stores)
    with pytest.raises(MachineError, match=r"every replica has exited.*data servers.*resume the run"):
        job.train(watch, Stop())
    assert time.monotonic() - began[0] < 60


@pytest.mark.soak
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_model_parallel_replica_learns_the_same_bits_with_data_servers(
    in_flight: int, images: Path, stores: Path, tmp_path: Path
) -> None:
    mesh = f'[mesh]\ngrid = "1x2"\nmicrobatches = {in_flight}\n'
    recipe = recipe_of(images, data=VARIED).replace("epochs = 4", "epochs = 2") + mesh
    alone = trained(recipe, tmp_path / "alone", stores)
    served = trained(with_servers(recipe, 2), tmp_path / "served", stores)
    assert weights(served) == weights(alone)


@contextmanager
def pool_of(recipe: str, folder: Path, stores: Path, host: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the address of an existing pool for a recipe, and the path of the store."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe)
    job = open_job(folder / "recipe.toml", folder / "run", stores=stores)
    varying, place = augmentation_to_json(augmentation_of(job.recipe, job.store)), folder / "address"
    token = token_of(os.environ)
    assert token is not None
    told = data_feed.arguments_of(job.store, 1 << 20, varying)
    things, _ = data_feed.head(PoolSettings(host=host), told, token, {}, folder, place)
    with things:
        deadline = time.monotonic() + 60
        while not place.exists():
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.01)
        yield place.read_text(), str(job.store.path)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    found = Token.new().text
    monkeypatch.setenv(VARIABLE, found)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["downpour", "batch"])
def test_a_pool_that_runs_already_gives_the_same_bits(
    strategy: str, token: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(images, data=VARIED)
    if strategy == "batch":
        steps = "batch_size = 8\nepochs = 4\nthreads = 1\nmax_staleness = 0\nepoch_fraction = 1.0\n"
        recipe = recipe.replace(VARIED, "").replace(steps, "max_iterations = 3\ndeterministic = true\n")
        recipe = recipe.replace('"downpour"', '"batch"')
    alone = trained(recipe, tmp_path / "alone", stores)
    with pool_of(recipe, tmp_path / "pool", stores, "127.0.0.1") as (address, _):
        at = str(Address.parsed(address).tcp).removeprefix("tcp://")
        served = trained(with_servers(recipe, at), tmp_path / "served", stores)
    assert weights(served) == weights(alone)


def test_a_pool_without_its_secret_or_that_is_not_there_is_a_sentence(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    recipe = with_servers(recipe_of(images), "127.0.0.1:9")
    with pytest.raises(UserError, match=f"set {VARIABLE}"):
        trained(recipe, tmp_path / "one", stores)
    monkeypatch.setenv(VARIABLE, Token.new().text)
    began = time.monotonic()
    with pytest.raises(MachineError, match=r"127\.0\.0\.1:9"):
        trained(recipe, tmp_path / "two", stores)
    assert time.monotonic() - began < 60


@pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
def test_processes_that_share_the_weights_are_handed_the_samples_of_the_store(
    token: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(images, "workers = 1\nprocesses = 2", data=VARIED).replace("size = 8", "size = 3")
    with pool_of(recipe, tmp_path / "pool", stores) as (address, store):
        write_rows(Store(store), "train", tmp_path / "rows")
        told = {
            "recipe": dump(load(str(tmp_path / "pool" / "recipe.toml"))),
            "store": store,
            "rows": str(tmp_path / "rows"),
            "pool": str(PoolLocation(address, False)),
        }
        server = ForkServer(["torch", "tests.support.training.served_hosts"])
        try:
            leader = "tests.support.training.served_hosts:are_handed_the_samples_of_the_store"
            process = server.start(Call("leader", leader, told))
            assert ended(process) == 0, process.why()
        finally:
            server.close()


@pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
def test_replicas_of_two_processes_learn_from_data_servers_and_every_sample_counts_once(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    slow = "learning_rate = 0.01\n"  # two that do not wait, of two processes each, overshoot at the usual one
    recipe = recipe_of(images, "workers = 2\nprocesses = 2", slow, VARIED).replace("max_staleness = 0\n", "")
    recipe = recipe.replace("size = 8", "size = 3").replace("epochs = 4", "epochs = 20")
    run = trained(with_servers(recipe, 2), tmp_path / "run", stores)
    samples = 20 * open_job(None, run.path, stores=stores, resume=Resume.ALWAYS).store.splits["train"]
    assert counted(run, samples)["counted"] == samples
    assert losses(run)[-1] < 0.1 * losses(run)[0]


@pytest.mark.soak
@pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
def test_a_process_of_hogwild_with_data_servers_learns_the_same_bits_as_without(
    token: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(images)
    steps = Steps(samples=400, batch=8, seed=3)
    with pool_of(recipe, tmp_path / "pool", stores) as (address, store):
        told = {"recipe": dump(load(str(tmp_path / "pool" / "recipe.toml"))), "store": store}
        pool = str(PoolLocation(address, False))
        factory = "lib.hogwild_training:of_recipe"
        alone, (done,) = train(factory, told, steps, 1)
        served, (again,) = train(factory, {**told, "pool": pool}, steps, 1)
        both = train(factory, {**told, "pool": pool}, steps, 2)[1]
    assert done.samples == again.samples == 400 and done.loss == again.loss
    assert all(torch.equal(value, served.state_dict()[name]) for name, value in alone.state_dict().items())
    assert [each.samples for each in both] == [200, 200]
