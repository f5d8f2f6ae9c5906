"""Data parallelism of strategy `supervised`: replicas against one process with the whole batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, events, last, losses
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from cotswold.errors import DivergedError, RunError, UserError
from cotswold.geometry import Grid
from cotswold.launch import Membership
from cotswold.mesh.ranks.replicas import replicated
from cotswold.recipe.schema import Mesh, SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_module_job
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.callbacks.early_stopping import EarlyStopping
from cotswold.training.callbacks.ema import ModelEMA
from cotswold.training.components import Components
from cotswold.training.data.batches import part_of_batch
from cotswold.training.data.user_datasets import training_batches
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.strategies.base import Batch, Share
from cotswold.training.strategies.replicated import Replication

SAMPLES = 23
"""Odd, so that the last batch of an epoch is smaller than the others."""


class Net(nn.Module):
    """Two branches, of which one has a parameter without gradients, and a flattening that fails on no
    sample.
    """

    def __init__(self, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.drop = nn.Dropout(drop)
        self.last = nn.Linear(3 * 16, 4)
        self.unused = nn.Linear(2, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.tanh(self.norm(self.first(x))))
        out: Tensor = self.last(h.view(len(x), -1))
        return out


def samples() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 1, 4, 4, generator=drawn, dtype=torch.float64)
    y = torch.randint(0, 4, (SAMPLES,), generator=drawn)
    y[::5] = -100  # targets that the loss ignores
    return x, y


class Counted(Dataset[Any]):
    """A map-style data set that counts the samples that this process reads."""

    def __init__(self) -> None:
        self.read = 0
        self.pairs = samples()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return self.pairs[0][index], self.pairs[1][index]


class Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        return iter(zip(*samples(), strict=True))


def _weighted() -> TensorDataset:
    x, y = samples()
    return TensorDataset(x, y.clamp(min=0), torch.linspace(0.2, 2, SAMPLES, dtype=torch.float64))


def _loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples()), batch_size=5, shuffle=True)


def _broken() -> TensorDataset:
    x, y = samples()
    x[11, 0, 2, 3] = float("nan")
    return TensorDataset(x, y)


DATA: dict[str, Callable[[], Any]] = {
    "map": lambda: TensorDataset(*samples()),
    "loader": _loader,
    "stream": Stream,
    "weights": _weighted,
    "five": lambda: TensorDataset(*(each[:5] for each in samples())),
    "few": lambda: TensorDataset(*(each[1:4] for each in samples())),
    "broken": _broken,
}
EQUAL = ("few", "loader", "map", "stream", "weights")
"""Data with which replicas equal one process; `few` are fewer samples than replicas."""


def train(
    rank_context: RankContext,
    run: Path,
    *,
    kind: str = "map",
    loss: str = "cross_entropy",
    stop_at: int = 0,
    mesh: Mesh | None = None,
    net: Mapping[str, Any] | None = None,
    callbacks: Callable[[], list[Callback]] = list,
    measured: Callable[[], list[Any]] = list,
    **settings: Any,
) -> bool:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    batch = {} if kind == "loader" else {"batch_size": 5}
    training = SupervisedTraining(
        strategy="supervised", **{"epochs": 3, "threads": 1, "learning_rate": 0.1, **batch, **settings}
    )
    module = Net(**(net or {}))
    if rank_context.replicas is not None and rank_context.replicas.index:
        with torch.no_grad():
            module.first.weight.add_(1)  # all replicas start with the first one's values
    job = open_module_job(
        module,
        DATA[kind](),
        loss=loss if loss == "cross_entropy" else _loss(loss),
        directory=run,
        settings=training,
        mesh=mesh,
        validation=TensorDataset(*(each[:9] for each in samples())),
        resume=Resume.IF_STARTED,
        rank_context=rank_context,
        components=Components(callbacks=callbacks(), metrics=tuple(measured())),
    )
    finished = job.train(watch, stop)
    assert not any(each._post_accumulate_grad_hooks for each in module.parameters())
    return finished


def _as_rank(replicas: int, grid: str, run: str, words: dict[str, Any]) -> bool:
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    mesh, axis = replicated(replicas, grid)
    own = None if mesh.size == 1 else mesh
    section = Mesh(replicas=replicas, grid=grid, **words.pop("mesh", {}))
    context = RankContext(members, own, members.rank, members.size, axis)
    return train(context, Path(run), mesh=section, **words)


def trained(replicas: int, run: Path, grid: str = "1x1", **words: Any) -> RunDirectory:
    count = replicas * Grid.parse(grid).size
    finished = "stop_at" not in words
    assert set(on_ranks(count, _as_rank, replicas, grid, str(run), words)) == {finished}
    return RunDirectory.open(run)


def weights(run: RunDirectory) -> dict[str, Tensor]:
    found = {}
    checkpoint = last(run.checkpoints)
    for name in checkpoint.names:
        if name != "random":
            found[name] = torch.as_tensor(checkpoint.read(name))
    return found


def alone(run: Path, **words: Any) -> RunDirectory:
    assert train(SINGLE_PROCESS, run, **words)
    return RunDirectory.open(run)


def compare(one: RunDirectory, other: RunDirectory) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(losses(one), losses(other), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_replicas_equal_one_process_with_the_whole_batch(tmp_path: Path, kind: str, replicas: int) -> None:
    whole, parts = alone(tmp_path / "whole", kind=kind), trained(replicas, tmp_path / "parts", kind=kind)
    compare(whole, parts)
    for name in ("validation", "step"):
        one, other = (
            [
                {k: v for k, v in each.items() if k in ("loss", "accuracy", "step")}
                for each in events(run, name)
            ]
            for run in (whole, parts)
        )
        assert one == [pytest.approx(each, rel=1e-8) for each in other]
    assert events(whole, "end")[0]["samples"] == events(parts, "end")[0]["samples"]


def test_a_replica_reads_only_its_part_of_a_map_style_data_set() -> None:
    assert sorted(on_ranks(3, _reads)) == [5, 9, 9]


def _reads() -> int:
    """Return the samples that this replica reads in an epoch of 5 batches, of which the last has 3."""

    dataset = Counted()
    share = Share(dist.get_rank(), dist.get_world_size())
    batches = iter(training_batches(dataset, 5, 0, torch.device("cpu"), share))
    for _ in range(5):
        next(batches)
    return dataset.read


def test_parts_of_a_batch_differ_by_at_most_one_sample_and_cover_it() -> None:

    for samples_of_batch in range(8):
        for count in range(1, 6):
            bounds = [Share(index, count).bounds(samples_of_batch) for index in range(count)]
            assert [each for low, high in bounds for each in range(low, high)] == list(
                range(samples_of_batch)
            )
            sizes = [high - low for low, high in bounds]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("replicas", [2, 4])
def test_synchronised_batch_norm_is_that_of_the_whole_batch(tmp_path: Path, replicas: int) -> None:
    words: dict[str, Any] = {"net": {"norm": True}}
    whole = alone(tmp_path / "whole", **words)
    parts = trained(replicas, tmp_path / "parts", mesh={"sync_batchnorm": True}, **words)
    compare(whole, parts)


def test_batch_norm_of_each_replica_differs_and_the_first_replica_is_saved(tmp_path: Path) -> None:
    words: dict[str, Any] = {"net": {"norm": True}}
    whole, parts = alone(tmp_path / "whole", **words), trained(2, tmp_path / "parts", **words)
    with pytest.raises(AssertionError):
        compare(whole, parts)


def _same_bits(one: RunDirectory, other: RunDirectory) -> bool:
    found = [bits(each) for each in (one, other)]
    for _, state in found:
        state["account"].pop("wire_bytes")  # ranks that find each other again send more
    return found[0] == found[1]


def test_a_run_with_dropout_resumes_on_as_many_replicas_with_the_same_bits(tmp_path: Path) -> None:
    words: dict[str, Any] = {"net": {"norm": True, "drop": 0.5}}
    whole = trained(2, tmp_path / "whole", **words)
    again = trained(2, tmp_path / "again", **words)
    assert _same_bits(whole, again)
    trained(2, tmp_path / "parts", stop_at=7, **words)
    assert _same_bits(whole, trained(2, tmp_path / "parts", **words))


def _flags() -> list[int]:
    _, axis = replicated(2, "1x1")
    group = dist.new_group()
    assert group is not None
    rank = dist.get_rank()
    context = RankContext(Membership(rank, 2, ("here",) * 2, group), None, rank, 2, axis)
    return context.all_reduce_max([rank, 1 - rank, 0])


def test_replicas_of_one_process_agree_on_their_flags() -> None:
    assert on_ranks(2, _flags) == [[1, 1, 0], [1, 1, 0]]


class StopAtSeven(Callback):
    """Requests a stop after step 7 on one rank alone."""

    every_rank = True

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_step_end(self, context: CallbackContext) -> None:
        if dist.get_rank() == self.rank and context.step == 7:
            context.stop.request()


def _stop_on(rank: int) -> list[Callback]:
    return [StopAtSeven(rank)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_to_one_replica_stops_all(tmp_path: Path, rank: int) -> None:
    stopped = trained(2, tmp_path / "run", stop_at=-1, callbacks=partial(_stop_on, rank))
    assert [each["step"] for each in events(stopped, "step")][-1] == 7
    compare(alone(tmp_path / "whole"), trained(2, tmp_path / "run"))


def _impatient() -> list[Callback]:
    return [EarlyStopping(patience=1, min_delta=100)]


def test_a_callback_of_the_first_replica_ends_the_run_of_all(tmp_path: Path) -> None:
    whole = alone(tmp_path / "whole", callbacks=_impatient)
    parts = trained(2, tmp_path / "parts", callbacks=_impatient)
    assert events(parts, "step")[-1]["step"] == events(whole, "step")[-1]["step"] == 5
    compare(whole, parts)


def _averaged() -> list[Callback]:
    return [ModelEMA(decay=0.8), EarlyStopping(patience=2, min_delta=0.05)]


def test_callbacks_and_sums_of_batches_equal_one_process_and_resume_with_the_same_bits(
    tmp_path: Path,
) -> None:
    words: dict[str, Any] = {"callbacks": _averaged, "accumulate": 2, "epochs": 20}
    whole, parts = alone(tmp_path / "whole", **words), trained(2, tmp_path / "parts", **words)
    compare(whole, parts)
    assert any(name.startswith("raw.") for name in weights(parts))
    steps = [events(run, "step")[-1]["step"] for run in (whole, parts)]
    assert steps[0] == steps[1] and 4 < int(str(steps[0])) < 20 * 3
    seen = [[each["loss"] for each in events(run, "validation")] for run in (whole, parts)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-10)
    again = tmp_path / "again"
    trained(2, again, stop_at=4, **words)
    assert _same_bits(parts, trained(2, again, **words))


def test_replicas_draw_different_random_numbers(tmp_path: Path) -> None:
    one, other = on_ranks(2, _draws)
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert other[0] != other[1]


def _draws() -> list[float]:

    _, axis = replicated(2, "1x1")
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), 2, ("here",) * 2, group)
    replication = Replication(axis, members, Net(), 5)
    torch.manual_seed(5)
    found = []
    for step in range(2):
        replication.seed_step(0, step)
        found.append(float(torch.rand(())))
    return found


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 1), (1, 3)])
def test_a_run_resumes_on_another_number_of_replicas(tmp_path: Path, before: int, after: int) -> None:
    whole = alone(tmp_path / "whole")
    run = tmp_path / "parts"
    stopped: dict[str, Any] = {"stop_at": 7}
    for count, words in ((before, stopped), (after, dict[str, Any]())):
        if count == 1:
            assert train(SINGLE_PROCESS, run, **words) == (not words)
        else:
            trained(count, run, **words)
    compare(whole, RunDirectory.open(run))
    assert {"replicas": after}.items() <= {
        "replicas": 1,
        **events(RunDirectory.open(run), "resumed")[0],
    }.items()


def _sum_of_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets) * (targets >= 0).sum()


def _loss(kind: str) -> Any:
    if kind == "own sum":
        return _sum_of_losses
    if kind == "sum":
        return nn.CrossEntropyLoss(reduction="sum")
    return nn.CrossEntropyLoss(torch.tensor([0.1, 2, 1, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("kind", ["sum", "class weights"])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_losses_that_are_sums_or_weigh_classes_equal_one_process(tmp_path: Path, kind: str) -> None:
    words: dict[str, Any] = {"loss": kind, "learning_rate": 0.01}
    whole, parts = alone(tmp_path / "whole", **words), trained(3, tmp_path / "parts", **words)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-10, atol=1e-10)
    steps = [[each["loss"] for each in events(run, "step")] for run in (whole, parts)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-8)


@pytest.mark.parametrize("kind", ["map", "weights"])
@pytest.mark.parametrize("loss", ["cross_entropy", "sum", "own sum", "class weights"])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_accumulated_batches_equal_one_batch_in_one_process_and_on_replicas(
    tmp_path: Path, loss: str, kind: str, accumulate: int
) -> None:
    words: dict[str, Any] = {"loss": loss, "kind": kind, "learning_rate": 0.01, "epochs": 2}
    whole = alone(tmp_path / "whole", batch_size=2 * accumulate, **words)
    words |= {"batch_size": 2, "accumulate": accumulate}  # the last batch of 23 samples has one
    parts = alone(tmp_path / "parts", **words)
    replicas = trained(2, tmp_path / "replicas", **words)
    for run in (parts, replicas):
        torch.testing.assert_close(weights(whole), weights(run), rtol=1e-10, atol=1e-10)
        for name in ("step", "validation"):
            if name == "step" or "sum" not in loss:
                seen = [
                    [each.get(key, -1) for key in ("loss", "accuracy") for each in events(one, name)]
                    for one in (whole, run)
                ]
                assert seen[0] == pytest.approx(seen[1], rel=1e-8)


@pytest.mark.parametrize("kind", ["cross_entropy", "sum", "class weights"])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_an_idle_replica_divides_sums_of_batches_as_the_others_do(tmp_path: Path, kind: str) -> None:
    words: dict[str, Any] = {"loss": kind, "accumulate": 2, "learning_rate": 0.05, "batch_size": 2}
    words |= {"kind": "five", "callbacks": _keeps_weights}
    parts = trained(2, tmp_path / "parts", **words)
    if kind == "cross_entropy":
        compare(alone(tmp_path / "whole", **words), parts)
    mine, others = torch.load(tmp_path / "parts/0.pt"), torch.load(tmp_path / "parts/1.pt")
    torch.testing.assert_close(mine, others, rtol=0, atol=0)


class KeepsWeights(Callback):
    """Saves the module of every replica at the end."""

    every_rank = True
    needs_module = True

    def on_end(self, context: CallbackContext) -> None:
        assert context.module is not None, "needs_module"
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.save(context.module.state_dict(), context.run / f"{rank}.pt")


def _keeps_weights() -> list[Callback]:
    return [KeepsWeights()]


def test_a_module_on_grids_of_two_replicas_equals_one_process(tmp_path: Path) -> None:
    whole = alone(tmp_path / "whole")
    compare(whole, trained(2, tmp_path / "parts", "1x2"))


def test_synchronised_batch_norm_on_grids_of_two_replicas_equals_one_process(tmp_path: Path) -> None:
    words: dict[str, Any] = {"net": {"norm": True}}
    whole = alone(tmp_path / "whole", **words)
    compare(whole, trained(2, tmp_path / "parts", "1x2", mesh={"sync_batchnorm": True}, **words))


def test_a_run_on_grids_resumes_with_the_same_bits(tmp_path: Path) -> None:
    words: dict[str, Any] = {"net": {"drop": 0.5}}
    whole = trained(2, tmp_path / "whole", "1x2", **words)
    trained(2, tmp_path / "parts", "1x2", stop_at=7, **words)
    assert _same_bits(whole, trained(2, tmp_path / "parts", "1x2", **words))


def test_inputs_and_targets_of_other_lengths_cannot_be_divided() -> None:

    with pytest.raises(UserError, match="3 and 4 samples"):
        part_of_batch(Batch(torch.zeros(3, 2), torch.zeros(4)), Share(0, 2))


def _diverges(run: str) -> str:
    with pytest.raises(DivergedError) as found:
        _as_rank(2, "1x1", run, {"kind": "broken"})
    return str(found.value)


def test_all_replicas_stop_and_name_the_sample_that_is_not_finite(tmp_path: Path) -> None:
    said = on_ranks(2, _diverges, str(tmp_path / "run"))
    assert said[0] == said[1]
    assert "sample 11" in said[0]


def test_synchronised_batch_norm_cannot_change_in_a_run(tmp_path: Path) -> None:

    net: dict[str, Any] = {"norm": True}
    trained(2, tmp_path / "run", stop_at=7, net=net)
    with pytest.raises(RunError, match=r"mesh\.sync_batchnorm"):
        train(SINGLE_PROCESS, tmp_path / "run", net=net, mesh=Mesh(sync_batchnorm=True))
    assert train(SINGLE_PROCESS, tmp_path / "run", net=net)


class Flat(nn.Sequential):
    """A module whose batch normalisation needs two samples."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4))
        self.double()


def _one_sample(run: str) -> str:
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), 2, ("here",) * 2, group)
    context = RankContext(members, None, members.rank, 2, replicated(2, "1x1")[1])
    settings = SupervisedTraining(strategy="supervised", epochs=1, threads=1, batch_size=2)
    job = open_module_job(
        Flat(),
        TensorDataset(*samples()),
        loss="cross_entropy",
        directory=run,
        settings=settings,
        mesh=Mesh(replicas=2),
        rank_context=context,
    )
    with pytest.raises(UserError) as found:
        job.train(lambda event: None, Stop())
    return str(found.value)


def test_batch_norm_of_a_part_of_one_sample_names_the_remedies(tmp_path: Path) -> None:
    for said in on_ranks(2, _one_sample, str(tmp_path / "run")):
        assert "fewer replicas, or mesh.sync_batchnorm" in said


class CompiledFrames(Callback):
    """Records how many functions torch compiled."""

    def on_end(self, context: CallbackContext) -> None:
        context.event("frames", compiled=torch._dynamo.utils.counters["frames"]["ok"])


def _counts_frames() -> list[Callback]:
    return [CompiledFrames()]


@pytest.mark.slow
@pytest.mark.parametrize("sync", [False, True])
def test_compiled_replicas_have_the_parameters_of_uncompiled_ones(tmp_path: Path, sync: bool) -> None:
    words: dict[str, Any] = {"epochs": 2, "mesh": {"sync_batchnorm": sync}, "net": {"norm": sync}}
    plain = trained(2, tmp_path / "plain", **words)
    compiled = trained(2, tmp_path / "compiled", compile=True, callbacks=_counts_frames, **words)
    assert int(str(events(compiled, "frames")[0]["compiled"])) > 0
    compare(plain, compiled)
    compare(alone(tmp_path / "whole", epochs=2, net={"norm": sync}), plain)
