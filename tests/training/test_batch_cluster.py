"""Whole-set optimisation on the workers of a cluster of this machine."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ports import free_ports
from tests.ray_token import RAY_TOKEN
from tests.support.api.train import train_with
from tests.support.training.runs import labelled_vectors
from torch import Tensor, nn

import cotswold
from cotswold import training
from cotswold.checkpoint import Checkpoint
from cotswold.errors import UserError
from cotswold.processes.ray.node import start_head
from cotswold.run import Stop
from cotswold.testing import wait_until
from cotswold.training import open_job

Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def data() -> Data:
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(500, 6, generator=numbers)
    return inputs, (inputs[:, :3].argmax(1) + 0).long()


def made() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(data: Data, place: Path, **settings: object) -> cotswold.Run:
    words = {
        "strategy": "batch",
        "loss": "cross_entropy",
        "portion_size": 16,
        "max_iterations": 8,
        **settings,
    }
    module = made().to(data[0].dtype)
    return train_with(module, data, directory=place, **words)


def vector(run: cotswold.Run) -> Tensor:
    checkpoint = Checkpoint(run.checkpoints[-1])
    return torch.cat(
        [checkpoint.read(name).flatten() for name in sorted(checkpoint.names) if "network" in name]
    )


def losses(run: cotswold.Run) -> list[float]:
    return [float(str(event["loss"])) for event in run.events if event["kind"] == "step"]


@pytest.mark.parametrize("travel", ["sandblaster", "bunyip"])
def test_a_cluster_trains_as_one_process_does_to_rounding(travel: str, data: Data, tmp_path: Path) -> None:
    alone = trained(data, tmp_path / "alone", validation=0.2)
    spread = trained(data, tmp_path / "spread", validation=0.2, workers=2, servers=2, point_transfer=travel)
    assert losses(spread)[:3] == pytest.approx(losses(alone)[:3], rel=1e-4)
    (mine, theirs) = ([e for e in run.events if e["kind"] == "validation"] for run in (alone, spread))
    assert [e["accuracy"] for e in mine][:3] == pytest.approx([e["accuracy"] for e in theirs][:3], abs=0.02)
    assert spread.status == "finished" and "wire_bytes" in spread.events[-1]


@pytest.mark.parametrize("travel", ["sandblaster", "bunyip"])
def test_weight_decay_on_a_cluster_has_the_bits_of_one_process(
    travel: str, data: Data, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"deterministic": True, "weight_decay": 0.01}
    alone = trained(data, tmp_path / "alone", **settings)
    spread = trained(data, tmp_path / "spread", **settings, workers=2, servers=2, point_transfer=travel)
    assert losses(alone) == losses(spread)
    assert torch.equal(vector(alone), vector(spread))
    assert losses(alone) != losses(trained(data, tmp_path / "without", deterministic=True))


def test_in_float64_too_one_process_and_a_cluster_have_the_same_bits(data: Data, tmp_path: Path) -> None:
    exact = data[0].double(), data[1]
    alone = trained(exact, tmp_path / "alone", deterministic=True)
    spread = trained(exact, tmp_path / "spread", deterministic=True, workers=2, servers=2)
    assert losses(alone) == losses(spread)


@pytest.mark.soak
def test_deterministic_sums_have_the_bits_of_one_process_after_any_kill(data: Data, tmp_path: Path) -> None:
    alone = trained(data, tmp_path / "alone", deterministic=True, max_iterations=12)
    killed: list[int] = []

    def children(process: int) -> list[str]:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()

    before = children(os.getpid())

    def kill(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] in (3, 6):
            (server,) = (each for each in children(os.getpid()) if each not in before)
            worker = next(each for each in children(int(server)) if int(each) not in killed)
            os.kill(int(worker), signal.SIGKILL)
            killed.append(int(worker))

    spread = trained(
        data, tmp_path / "spread", deterministic=True, max_iterations=12, workers=2, callbacks=[kill]
    )
    assert len(killed) == 2
    assert any(
        event["kind"] == "cluster_exited" for event in spread.events
    )  # the run may end before the other's
    assert torch.equal(vector(alone), vector(spread))
    assert losses(alone) == losses(spread)


@pytest.mark.soak
def test_a_run_moves_between_one_process_and_clusters_of_any_size(data: Data, tmp_path: Path) -> None:
    settings: dict[str, object] = {"deterministic": True, "method": "cg"}
    whole = trained(data, tmp_path / "whole", **settings)
    for until, spread in (
        (2, {}),
        (4, {"workers": 2, "servers": 3}),
        (6, {"workers": 3}),
        (8, {"workers": 1}),
    ):
        resume = until > 2
        moved = trained(data, tmp_path / "moved", **settings, **spread, resume=resume, max_iterations=until)
    assert torch.equal(vector(whole), vector(moved))


def test_a_stop_inside_an_iteration_of_a_cluster_is_resumed_with_the_same_bits(
    data: Data, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"deterministic": True, "max_iterations": 6}
    whole = trained(data, tmp_path / "whole", **settings)
    stop = Stop()

    def ask(event: Mapping[str, object]) -> None:
        if event["kind"] == "cluster_evaluation" and event["evaluation"] == 5:
            stop.signal = signal.SIGTERM

    cut = trained(data, tmp_path / "cut", **settings, workers=2, callbacks=[ask], stop=stop)
    assert cut.status == "interrupted"
    assert torch.equal(
        vector(whole), vector(trained(data, tmp_path / "cut", **settings, workers=2, resume=True))
    )


@pytest.mark.parametrize("kind", ["phase_start", "validation"])
def test_a_stop_between_evaluations_of_a_cluster_is_saved(kind: str, data: Data, tmp_path: Path) -> None:
    stop = Stop()

    def ask(event: Mapping[str, object]) -> None:
        if event["kind"] == kind and event.get("step") in (None, 2):
            stop.signal = signal.SIGTERM
            time.sleep(0.2)  # so that the cluster looks around while it is read or validated next

    settings: dict[str, object] = {"workers": 2, "validation": 0.2, "max_iterations": 4}
    cut = trained(data, tmp_path / "cut", **settings, callbacks=[ask], stop=stop)
    assert cut.status == "interrupted"
    assert cut.checkpoints[-1].name.endswith("0" if kind == "phase_start" else "2")
    assert trained(data, tmp_path / "cut", **settings, resume=True).status == "finished"


def test_what_a_fraction_counted_can_be_counted_again(data: Data, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "sample_fraction": 0.5,
        "cycle_iterations": 2,
        "deterministic": True,
        "max_iterations": 6,
    }
    first = trained(data, tmp_path / "first", **settings, workers=2)
    drawn = [event for event in first.events if event["kind"] == "subset"]
    assert [event["subset"] for event in drawn] == [1, 2, 3]
    again = trained(data, tmp_path / "again", **settings, replay_run=str(tmp_path / "first"))
    assert torch.equal(vector(first), vector(again))


class Late(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Validation samples that take longer than the cluster's polling interval."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.3)
        return torch.ones(6), torch.tensor(1)


def test_a_stop_that_comes_while_a_cluster_validates_is_saved_and_resumed(data: Data, tmp_path: Path) -> None:
    stop = Stop()

    def ask(event: Mapping[str, object]) -> None:
        if event["kind"] == "phase_start":  # the first validation is next
            stop.signal = signal.SIGTERM

    settings: dict[str, object] = {"validation": Late(), "workers": 2, "max_iterations": 1}
    cut = trained(data, tmp_path / "run", **settings, callbacks=[ask], stop=stop)
    assert cut.status == "interrupted" and len(cut.checkpoints) == 1
    assert trained(data, tmp_path / "run", **settings, resume=True).status == "finished"


class Poisoned(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples of which number 77 cannot be read while a file exists."""

    def __init__(self, data: Data, rotten: Path) -> None:
        self.data, self.rotten = data, rotten

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == 77 and self.rotten.exists():
            raise ValueError("sample 77 is rotten")
        return self.data[0][number], self.data[1][number]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_cannot_be_read_is_named_and_the_run_goes_on_from_there(
    workers: int, data: Data, tmp_path: Path
) -> None:
    rotten = tmp_path / "rotten"
    samples = Poisoned(data, rotten)

    def spoil(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            rotten.touch()

    words = {"strategy": "batch", "loss": "cross_entropy", "max_iterations": 4, "workers": workers}
    with pytest.raises(Exception, match="sample 77 is rotten"):
        train_with(made(), samples, directory=tmp_path / "run", callbacks=[spoil], **words)
    run = cotswold.Run(tmp_path / "run")
    assert run.status == "failed" and run.checkpoints[-1].name == "00000002"
    rotten.unlink()
    again = train_with(made(), samples, directory=run.path, resume=True, **words)
    assert again.status == "finished" and len(losses(again)) == 4


def test_a_module_cannot_be_sent_to_other_machines(data: Data, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be sent to other machines; name a function that returns it"):
        trained(data, tmp_path / "run", ray_address="localhost:1")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")
def test_an_address_without_the_secret_of_its_machines_is_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delenv("COTSWOLD_TOKEN", raising=False)
    recipe, stores = labelled_vectors(tmp_path, ""), tmp_path / "stores"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UserError, match="set COTSWOLD_TOKEN to the token with which 'cotswold worker'"):
            open_job(recipe, tmp_path / "run", overrides=[f"cluster.ray_address={address}"], stores=stores)
        words = {"loss": "cross_entropy", "strategy": "batch", "ray_address": address}
        with pytest.raises(UserError, match="set COTSWOLD_TOKEN to the token with which 'cotswold worker'"):
            train_with(PARTS, directory=tmp_path / "run", **words)
    assert not (tmp_path / "run").exists() and not stores.exists()


def parts() -> tuple[nn.Module, Data]:
    """Return module and data, made in each process; the module's initial weights differ."""
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 6, generator=numbers)
    torch.manual_seed(os.getpid())
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (inputs, inputs[:, :3].argmax(1))


PARTS = f"{Path(__file__).stem}:parts"


@pytest.mark.parametrize(
    ("factory", "loss", "said"),
    [
        (PARTS, nn.functional.cross_entropy, "a loss for other machines must be a name"),
        ("__main__:parts", "cross_entropy", "is in the program itself"),
    ],
)
def test_what_other_machines_cannot_make_is_refused(
    factory: str, loss: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("__main__.parts", parts, raising=False)
    with pytest.raises(UserError, match=said):
        cotswold.train(
            factory,
            directory=tmp_path / "run",
            loss=loss,
            strategy=cotswold.FullBatch(ray_address="localhost:1"),
        )


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.soak
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")
def test_a_factory_makes_module_and_data_on_the_machines_of_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("COTSWOLD_TOKEN", RAY_TOKEN.text)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,  # names of sockets are short
        free_ports(2) as (port, client_port),
    ):
        words = [f"--temp-dir={folder}", f"--ray-client-server-port={client_port}"]
        head = start_head(RAY_TOKEN, port=port, cores=2, words=words)
        try:
            wait_until(lambda: listens(port) or head.code() is not None, "Ray listens", 60)
            run = cotswold.train(
                PARTS,
                directory=tmp_path / "run",
                loss="cross_entropy",
                validation=0.2,
                strategy=cotswold.FullBatch(
                    portion_size=16,
                    max_iterations=8,
                    deterministic=True,
                    workers=2,
                    ray_address=f"127.0.0.1:{port}",
                ),
            )
        finally:
            head.send(signal.SIGTERM)
            select.select([head], [], [], 20)
            head.end()
    torch.manual_seed(os.getpid())
    module, data = parts()
    alone = cotswold.train(
        module,
        data,
        directory=tmp_path / "alone",
        loss="cross_entropy",
        validation=0.2,
        strategy=cotswold.FullBatch(portion_size=16, max_iterations=8, deterministic=True),
    )
    assert losses(run) == losses(alone) and torch.equal(vector(run), vector(alone))


@pytest.mark.slow
def test_a_recipe_is_spread_over_workers_of_a_fork_server(tmp_path: Path) -> None:
    recipe = labelled_vectors(tmp_path, "", deterministic=True)
    checkpoints = []
    for name, more in (("alone", []), ("spread", ["cluster.workers=2", "cluster.servers=2"])):
        job = training.open_job(recipe, tmp_path / name, overrides=more, stores=tmp_path / "stores")
        assert job.train(lambda event: None, Stop())
        checkpoints.append(cotswold.Run(tmp_path / name))
    assert torch.equal(vector(checkpoints[0]), vector(checkpoints[1]))
    assert not (tmp_path / "spread" / "rows").exists()
