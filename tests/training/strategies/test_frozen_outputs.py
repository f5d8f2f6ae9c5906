"""Greedy training keeps the outputs of frozen stacks: with the same bits, and only where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, events, finish, losses, resumed, started, stop_after
from tests.support.training.small_recipes import greedy
from tests.training.test_mesh_runs import _train
from torch import Tensor

from cotswold.geometry import Grid, StackPartition
from cotswold.nn import SparseAutoencoderStack
from cotswold.recipe import load
from cotswold.run import RunDirectory
from cotswold.training.strategies import frozen_outputs
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.frozen_outputs import FrozenOutputs, RunLimits

STEPS = 14
"""Steps of each of the two stacks, with 8 samples in a batch."""


def always(*_: object, **__: object) -> bool:
    return True


def never(*_: object, **__: object) -> bool:
    return False


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Decide for or against keeping, whatever the times."""
    return lambda kept: monkeypatch.setattr(frozen_outputs, "is_faster", always if kept else never)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes of all forward passes of stacks."""
    sizes: list[int] = []
    forward = SparseAutoencoderStack.forward

    def counted(self: SparseAutoencoderStack, x: Tensor) -> Tensor:
        sizes.append(x.shape[0])
        return forward(self, x)

    monkeypatch.setattr(SparseAutoencoderStack, "forward", counted)
    return sizes


def said(run: RunDirectory) -> list[object]:
    return [event["kept_in"] for event in events(run, "frozen_outputs")]


@pytest.mark.parametrize(("size", "saved"), [(8, 6), (10, 7)], ids=["whole epochs", "samples left out"])
def test_kept_outputs_give_the_bits_of_computed_ones(
    keep: Callable[[bool], None],
    forwards: list[int],
    images: Path,
    tmp_path: Path,
    stores: Path,
    size: int,
    saved: int,
) -> None:
    recipe = greedy(images).replace("batch_size = 8", f"batch_size = {size}")
    keep(False)
    computed = finish(started(recipe, tmp_path / "computed", stores))
    computed_calls = len(forwards)
    forwards.clear()
    keep(True)
    kept = finish(started(recipe, tmp_path / "kept", stores))
    assert said(computed) == [None] and said(kept) == ["memory"]
    assert bits(kept) == bits(computed)
    assert computed_calls - len(forwards) == saved


def test_a_run_resumed_within_a_phase_keeps_outputs_again_with_the_same_bits(
    keep: Callable[[bool], None],
    images: Path,
    tmp_path: Path,
    stores: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(False)
    whole = finish(started(greedy(images), tmp_path / "whole", stores))
    keep(True)
    job = started(greedy(images), tmp_path / "parts", stores)
    assert not stop_after(job, STEPS + 4, monkeypatch)
    parts = finish(resumed(tmp_path / "parts", stores))
    assert said(parts) == ["memory", "memory"]
    assert bits(parts) == bits(whole)


def test_outputs_are_kept_on_the_disk_if_memory_is_short_and_not_at_all_if_the_disk_is_too(
    keep: Callable[[bool], None],
    images: Path,
    tmp_path: Path,
    stores: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(True)
    monkeypatch.setattr(frozen_outputs, "available_bytes", lambda: 1000)
    on_disk = finish(started(greedy(images), tmp_path / "disk", stores))
    assert not [each for each in on_disk.path.iterdir() if each.name.startswith("tmp")]
    monkeypatch.setattr(frozen_outputs, "DISK_FRACTION", 0.0)
    nowhere = finish(started(greedy(images), tmp_path / "nowhere", stores))
    assert said(on_disk) == ["disk"] and said(nowhere) == [None]
    assert bits(on_disk) == bits(nowhere)


def test_outputs_of_augmented_samples_are_not_kept(
    keep: Callable[[bool], None], images: Path, tmp_path: Path, stores: Path
) -> None:
    keep(True)
    recipe = greedy(images).replace("validation = 0.2", 'validation = 0.2, augment = [{ name = "flip" }]')
    assert not said(finish(started(recipe, tmp_path / "augmented", stores)))


def test_outputs_of_offloaded_stacks_are_kept(
    keep: Callable[[bool], None], images: Path, tmp_path: Path, stores: Path
) -> None:
    recipe = greedy(images, more='offload = "disk"')
    keep(False)
    computed = finish(started(recipe, tmp_path / "computed", stores))
    keep(True)
    kept = finish(started(recipe, tmp_path / "kept", stores))
    assert said(kept) == ["memory"] and bits(kept) == bits(computed)


def _train_rank(is_kept: bool, recipe: str, run: str, stores: str) -> bool:
    frozen_outputs.is_faster = always if is_kept else never
    return _train("1x2", recipe, run, stores, False, 0)


def test_each_rank_of_a_grid_keeps_its_part(images: Path, tmp_path: Path, stores: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(greedy(images))
    for kept in (True, False):
        assert set(on_ranks(2, _train_rank, kept, str(recipe), str(tmp_path / str(kept)), str(stores))) == {
            True
        }
    of_kept, of_computed = (RunDirectory.open(tmp_path / name) for name in ("True", "False"))
    assert said(of_kept) == ["memory"] and said(of_computed) == [None]
    assert bits(of_kept)[0] == bits(of_computed)[0]  # their counts of exchanged bytes differ


def _train_limited(limit: int, recipe: str, run: str, stores: str) -> bool:
    frozen_outputs.VALIDATION_BYTES = limit
    return _train("1x2", recipe, run, stores, False, 0)


def test_ranks_validate_together_if_only_one_may_keep_its_outputs(
    images: Path, tmp_path: Path, stores: Path
) -> None:
    recipe = tmp_path / "uneven.toml"
    recipe.write_text(greedy(images).replace("size = 16", "size = 18"))
    parts = [box.size for box in StackPartition(load(recipe).stack_geometries()[0], Grid(1, 2)).output.boxes]
    larger, smaller = (12 * 3 * 4 * part for part in parts)  # validation samples x channels x float32
    assert larger > smaller
    found = []
    for limit in (0, smaller, larger):
        on_ranks(2, _train_limited, limit, str(recipe), str(tmp_path / str(limit)), str(stores))
        found.append(losses(RunDirectory.open(tmp_path / str(limit))))
    assert len(found[0]) > 4 and found[1] == found[2] == found[0]


def samples(rows: Sequence[int]) -> Tensor:
    """Return samples that have their own numbers as values."""
    return torch.tensor(rows, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 2, 3, 3).contiguous()


class Recorded:
    """Limits of a run with batches of four samples, and its events."""

    def __init__(self, folder: Path, refusals: int = 0, *, fetches: bool = False, count: int = 8) -> None:
        self.events: list[dict[str, object]] = []
        self.refusals = refusals
        self.fetched: list[list[int]] = []
        limits = RunLimits(count, 4, folder, 1, self.largest, self.record, self.fetch if fetches else None)
        self.outputs = FrozenOutputs(limits)

    def largest(self, flags: Sequence[int]) -> list[int]:
        return [max(flags[0], self.refusals), *flags[1:]]

    def record(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    @property
    def reason(self) -> object:
        """Why nothing is kept, as the last event says."""
        assert self.events[-1]["kept_in"] is None
        return self.events[-1]["reason"]

    def fetch(self, rows: Sequence[int]) -> Tensor:
        self.fetched.append(list(rows))
        return samples(rows)

    def validate(self, take: int | None = None, version: int = 0, refuse: bool = False) -> list[float]:
        """Return the first value of each of three validation outputs, or of the first ``take``."""
        inputs = (torch.full((4, 2, 3, 3), float(each)) for each in range(3))
        self.calls, self.refusals = 0, int(refuse)
        found = self.outputs.of_validation(inputs, self.double, lambda: (version,))
        return [float(each[0, 0, 0, 0]) for each in islice(found, take)]

    def double(self, x: Tensor) -> Tensor:
        assert x.shape == (4, 2, 3, 3)  # kernels may be chosen by the size of a batch
        self.calls += 1
        return 2 * x

    def take(self, rows: list[int], version: int = 0, steps: int = 8) -> list[float]:
        """Return the first value of each output; the frozen stacks double."""
        self.calls = 0
        batch = Batch(samples(rows), None, numbers=rows)
        found = self.outputs.of_batch(batch, self.double, lambda: (version,), steps)
        return [float(each) for each in found[:, 1, 2, 2]]


def test_a_batch_of_seen_samples_is_read_and_others_are_computed(
    tmp_path: Path, keep: Callable[[bool], None]
) -> None:
    keep(True)
    run = Recorded(tmp_path)
    assert run.take([0, 1, 2, 3]) == [0, 2, 4, 6] and run.calls == 2
    assert run.take([3, 0, 1, 2]) == [6, 0, 2, 4] and run.calls == 0
    assert run.take([3, 4, 5, 6]) == [6, 8, 10, 12] and run.calls == 1
    assert run.take([6, 4, 0, 5]) == [12, 8, 0, 10] and run.calls == 0
    assert run.events == [{"kind": "frozen_outputs", "kept_in": "memory", "bytes": 576, "samples": 8}]
    run.outputs.start()
    assert run.take([0, 1, 2, 3]) == [0, 2, 4, 6] and run.calls == 2


def test_no_sample_is_read_again_for_a_batch_of_new_ones(
    tmp_path: Path, keep: Callable[[bool], None]
) -> None:
    keep(True)
    run = Recorded(tmp_path, fetches=True)
    run.take([0, 1, 2, 3])
    assert run.take([7, 5, 4, 6]) == [14, 10, 8, 12] and run.calls == 1
    assert run.take([4, 0, 7, 1]) == [8, 0, 14, 2] and run.calls == 0
    assert not run.fetched


def test_samples_that_the_first_epoch_left_out_are_read_once(
    tmp_path: Path, keep: Callable[[bool], None]
) -> None:
    keep(True)
    run = Recorded(tmp_path, fetches=True, count=10)
    run.take([0, 1, 2, 3])
    run.take([4, 5, 6, 7])
    assert run.take([9, 0, 2, 1]) == [18, 0, 4, 2] and run.calls == 1
    assert run.fetched == [[8, 9]]
    assert run.take([3, 8, 9, 7]) == [6, 16, 18, 14] and run.calls == 0


def test_outputs_of_changed_weights_are_not_used(tmp_path: Path, keep: Callable[[bool], None]) -> None:
    keep(True)
    run = Recorded(tmp_path)
    run.take([0, 1, 2, 3])
    assert run.take([0, 1, 2, 3], version=1) == [0, 2, 4, 6] and run.calls == 1
    assert run.take([0, 1, 2, 3], version=1) and run.calls == 1
    assert run.events[-1] == {
        "kind": "frozen_outputs",
        "kept_in": None,
        "reason": "the frozen stacks were changed",
    }


def test_no_rank_keeps_outputs_if_another_cannot(tmp_path: Path, keep: Callable[[bool], None]) -> None:
    keep(True)
    run = Recorded(tmp_path, refusals=1)
    run.take([0, 1, 2, 3])
    assert run.take([0, 1, 2, 3]) == [0, 2, 4, 6] and run.calls == 1
    assert run.reason == "another rank cannot keep its part"


def test_the_event_says_why_this_rank_keeps_nothing(
    tmp_path: Path, keep: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(False)
    slower = Recorded(tmp_path, refusals=1)
    slower.take([0, 1, 2, 3])
    assert slower.reason == "computing them again is faster"
    monkeypatch.setattr(frozen_outputs, "MEMORY_FRACTION", 0.0)
    monkeypatch.setattr(frozen_outputs, "DISK_FRACTION", 0.0)
    full = Recorded(tmp_path)
    full.take([0, 1, 2, 3])
    assert full.reason == "neither memory nor disk has room"
    monkeypatch.setattr(frozen_outputs, "has_cpu_kernel", never)
    other = Recorded(tmp_path)
    other.take([0, 1, 2, 3])
    assert other.reason == "other backends compute other bits at other places of a batch"


def test_nothing_is_measured_if_no_sample_comes_twice(tmp_path: Path, keep: Callable[[bool], None]) -> None:
    keep(True)
    run = Recorded(tmp_path)
    assert run.take([0, 1, 2, 3], steps=2) == [0, 2, 4, 6] and run.calls == 1
    assert not run.events


def test_outputs_for_validation_are_kept_until_weights_change_or_another_rank_computes(
    tmp_path: Path,
) -> None:
    run = Recorded(tmp_path)
    assert run.validate(take=1) == [0] and run.calls == 1  # computed when the caller takes it
    assert run.validate() == [0, 2, 4] and run.calls == 3  # only a complete pass is kept
    assert run.validate() == [0, 2, 4] and run.calls == 0
    assert run.validate(refuse=True) == [0, 2, 4] and run.calls == 3
    assert run.validate(version=1) == [0, 2, 4] and run.calls == 3
    assert run.validate(version=1) == [0, 2, 4] and run.calls == 0


def test_large_outputs_for_validation_are_computed_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Recorded(tmp_path)
    monkeypatch.setattr(frozen_outputs, "VALIDATION_BYTES", 3 * 4 * 2 * 9 * 4 - 1)
    assert run.validate() == [0, 2, 4] and run.calls == 3
    assert run.validate() == [0, 2, 4] and run.calls == 3
