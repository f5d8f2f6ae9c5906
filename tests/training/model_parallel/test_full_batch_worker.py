"""Workers that are rank groups: ranks that compute sums together, and live and die together."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.support.api.train import train_with
from tests.support.replicas.works import is_first
from tests.support.training.rank_groups import network
from tests.support.training.runs import labelled_vectors
from tests.training.test_batch_cluster import losses, vector
from torch import Tensor, nn

import cotswold
from cotswold import training
from cotswold.errors import CotswoldError, RecipeError
from cotswold.geometry import Grid
from cotswold.host import Call, ForkServer, Process
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.run import Stop
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import samples_of
from cotswold.training.full_batch.objective import INHERITED_OBJECTIVE, ModuleObjective
from cotswold.training.losses import loss_by_name

pytestmark = pytest.mark.usefixtures("template")  # they look at the tree of processes

Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def data() -> Data:
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(120, 2, 8, 7, generator=numbers, dtype=torch.float64)
    return inputs, (inputs.sum((1, 2, 3)) > 0).long()


def trained(data: Data, place: Path, **settings: object) -> cotswold.Run:
    words = {
        "strategy": "batch",
        "loss": "cross_entropy",
        "portion_size": 16,
        "max_iterations": 4,
        **settings,
    }
    return train_with(network(), data, directory=place, **words)


def finished(process: Process, seconds: float = 40.0) -> int:
    end = time.monotonic() + seconds
    while (code := process.code()) is None and time.monotonic() < end:
        time.sleep(0.02)
    assert code is not None, "it hangs"
    return code


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def led(
    server: ForkServer, function: str, output: Path | None = None, **arguments: object
) -> Iterator[Process]:
    """Yield a process that leads a rank group."""
    try:
        yield server.start(
            Call("leader", f"tests.support.training.rank_groups:{function}", arguments, output=output)
        )
    finally:
        server.close()


@pytest.mark.parametrize(("grid", "in_flight"), [("1x2", 1), ("3x1", 1), ("1x2", 3)])
def test_sums_of_model_parallel_ranks_are_those_of_one_process_to_rounding(
    grid: str, in_flight: int, data: Data, tmp_path: Path
) -> None:
    samples = DatasetSamples(samples_of(torch.utils.data.TensorDataset(*data), 16))  # type: ignore[arg-type]  # has what is asked
    work = ModuleObjective(network(), loss_by_name("cross_entropy"), samples, samples)
    server = fork_server_of_work({INHERITED_OBJECTIVE: work})
    with led(server, "compare", grid=grid, out=str(tmp_path), in_flight=in_flight) as process:
        assert finished(process) == 0, process.why()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.soak
@pytest.mark.parametrize("own", ["none", "sgd", "pushed"])
@pytest.mark.parametrize("grid", ["1x2", "3x1"])
def test_steps_of_model_parallel_ranks_are_those_of_one_process_to_rounding(
    grid: str, own: str, data: Data, tmp_path: Path
) -> None:
    samples = DatasetSamples(samples_of(torch.utils.data.TensorDataset(*data), 16))  # type: ignore[arg-type]  # has what is asked
    work = ModuleObjective(network(), loss_by_name("cross_entropy"), samples, samples)
    server = fork_server_of_work({INHERITED_OBJECTIVE: work})
    output = tmp_path / "said"
    with led(server, "compare_steps", output, grid=grid, own=own, out=str(tmp_path)) as process:
        assert finished(process) == 0, process.why() + output.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        *map(str, range(Grid.parse(grid).size)),
        "said",
    ]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("end", 0, "ended with exit code 0"),
        ("kill", 1, "rank 1 of its group was killed by SIGKILL, and ranks of a group end together"),
        ("fail", 2, "the rank has enough"),
        ("leader fails", 2, "the leader has enough"),
    ],
)
def test_model_parallel_ranks_end_together_and_report_why(
    what: str, code: int, said: str, tmp_path: Path
) -> None:
    out = tmp_path / "pid"
    with led(fork_server_of_work({}), "lead_one", what=what, out=str(out)) as process:
        assert (finished(process), said in process.why()) == (code, True), process.why()
    if out.exists():
        assert not runs(int(out.read_text()))


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.soak
@pytest.mark.parametrize("who", ["leader", "rank 1"])
def test_a_killed_rank_returns_its_portions_and_all_ranks_restart(
    who: str, data: Data, tmp_path: Path
) -> None:
    alone = trained(data, tmp_path / "alone")
    killed: list[int] = []

    def kill(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            # other tests of this process may have left children of their own, which lead nobody
            leaders = [worker for server in children(os.getpid()) for worker in children(server)]
            leader, own = next((one, fork) for one in leaders for fork in children(one) if children(fork))
            killed.append(leader if who == "leader" else children(own)[0])
            killed.extend([leader, *children(own)])
            os.kill(killed[0], signal.SIGKILL)
            deadline = time.monotonic() + 20
            while runs(leader) and time.monotonic() < deadline:  # or others end the run before it is known
                time.sleep(0.02)

    gangs = trained(data, tmp_path / "gangs", grid="1x2", workers=2, callbacks=[kill])
    assert killed and not any(map(runs, killed))
    ended = [str(event["reason"]) for event in gangs.events if event["kind"] == "cluster_exited"]
    assert any("killed by SIGKILL" in why for why in ended), ended
    assert who == "leader" or any("rank 1 of its group" in why for why in ended)
    counted = [event for event in gangs.events if event["kind"] == "cluster_evaluation"]
    assert {event["samples"] for event in counted} == {120}
    assert losses(gangs) == pytest.approx(losses(alone), rel=1e-9)
    assert torch.allclose(vector(gangs), vector(alone), rtol=1e-7, atol=1e-9)


@pytest.mark.soak
def test_a_run_moves_between_one_process_single_workers_and_model_parallel_workers(
    data: Data, tmp_path: Path
) -> None:
    whole = trained(data, tmp_path / "whole", validation=0.2)
    for until, spread in ((1, {"workers": 2}), (2, {"grid": "1x2", "workers": 2}), (3, {"grid": "2x1"})):
        moved = trained(
            data, tmp_path / "moved", validation=0.2, resume=until > 1, max_iterations=until, **spread
        )
    moved = trained(data, tmp_path / "moved", resume=True, max_iterations=4, grid="none", workers=1)
    assert losses(moved) == pytest.approx(losses(whole), rel=1e-9)
    assert torch.allclose(vector(moved), vector(whole), rtol=1e-7, atol=1e-9)


class Rotten(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == 17:
            raise ValueError("sample 17 is rotten")
        return torch.ones(2, 8, 7, dtype=torch.float64), torch.tensor(1)


def test_a_sample_that_no_rank_can_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CotswoldError, match="sample 17 is rotten"):
        trained(Rotten(), tmp_path / "run", grid="1x2")  # type: ignore[arg-type]  # has what is asked


def test_a_warning_that_is_an_error_ends_all_ranks_at_once(data: Data, tmp_path: Path) -> None:
    volumes = nn.Unflatten(1, (1, 1, 14, 8)), nn.Conv3d(1, 2, (1, 14, 8))
    module = nn.Sequential(nn.Flatten(), *volumes, nn.Flatten()).double()
    began = time.monotonic()
    with pytest.raises(CotswoldError, match="Conv3d '2' takes volumes, which are not distributed"):
        cotswold.train(
            module,
            data,
            directory=tmp_path / "run",
            loss="cross_entropy",
            grid="1x2",
            strategy=cotswold.FullBatch(max_iterations=1),
        )
    assert time.monotonic() - began < 60


class Hanging(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Hangs once, when rank 1 of any group reads late in the first evaluation."""

    def __init__(self, marker: Path, data: Data) -> None:
        self._marker, self._data, self._read = marker, data, 0

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        self._read += 1
        is_rank = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
        if is_rank and self._read > 60 and is_first(str(self._marker)):
            threading.Event().wait(60.0)
        return self._data[0][number], self._data[1][number]


@pytest.mark.soak
def test_a_rank_that_hangs_ends_all_ranks_which_restart(data: Data, tmp_path: Path) -> None:
    gangs = trained(
        Hanging(tmp_path / "hung", data),  # type: ignore[arg-type]  # has what is asked
        tmp_path / "run",
        grid="1x2",
        workers=1,
        heartbeat_timeout=2.0,
    )
    ended = [str(event["reason"]) for event in gangs.events if event["kind"] == "cluster_exited"]
    (why,) = [each for each in ended if "hangs" in each]
    assert re.search(r"rank 1 of worker-1 \(process \d+\) or worker-1 itself hangs: no process of", why), why
    assert len(losses(gangs)) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grid": "auto"}, "auto is not possible"),
        ({"grid": "1x2", "deterministic": True}, "ranks of a grid use another"),
    ],
)
def test_impossible_grids_are_refused_before_anything_starts(
    settings: dict[str, object], said: str, data: Data, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=said):
        trained(data, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_stopped_rank_ends_all_ranks(tmp_path: Path) -> None:
    out, said = tmp_path / "pid", tmp_path / "said"
    with led(
        fork_server_of_work({}), "lead_one", said, what="stop", out=str(out), timeout_seconds=2.0
    ) as process:
        assert finished(process) != 0
        assert "rank 1" in said.read_text() + process.why()
    assert not runs(int(out.read_text()))


@pytest.mark.soak
def test_a_recipe_is_trained_by_the_ranks_of_its_grid(tmp_path: Path) -> None:
    recipe = labelled_vectors(tmp_path, '{ type = "linear", features = 7 }, { type = "tanh" }')
    found = []
    for name, more in (("alone", []), ("gang", ["mesh.grid=1x2"])):
        job = training.open_job(recipe, tmp_path / name, overrides=more, stores=tmp_path / "stores")
        assert job.train(lambda event: None, Stop())
        found.append(losses(cotswold.Run(tmp_path / name)))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
