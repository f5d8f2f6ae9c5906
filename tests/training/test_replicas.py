"""Data parallelism of strategy `supervised`: replicas against one process with the whole batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.replica_runs import (
    EQUAL,
    Counted,
    Net,
    alone,
    as_rank,
    compare,
    samples,
    train,
    trained,
    weights,
)
from tests.support.training.runs import bits, events
from torch import nn
from torch.utils.data import TensorDataset

from cotswold.errors import DivergedError, RunError, UserError
from cotswold.launch import Membership
from cotswold.mesh.ranks.replicas import replicated
from cotswold.recipe.schema import Mesh, SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import open_module_job
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.callbacks.early_stopping import EarlyStopping
from cotswold.training.callbacks.ema import ModelEMA
from cotswold.training.data.batches import part_of_batch
from cotswold.training.data.user_datasets import training_batches
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.strategies.base import Batch, Share
from cotswold.training.strategies.replicated import Replication


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
        as_rank(2, "1x1", run, {"kind": "broken"})
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
