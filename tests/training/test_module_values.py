"""Special values of a module, its samples and its loss."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.training.runs import events
from tests.training.jobs.test_module_job import labelled, opened, settings, train
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from cotswold.errors import DivergedError, UserError
from cotswold.training.async_sgd.fork_check import try_in_fork
from cotswold.training.async_sgd.replica_task import ReplicaTask
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import Samples
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.objective import ModuleObjective
from cotswold.training.full_batch.objective_checks import check_repeatable
from cotswold.training.jobs.module_checks import with_module_device
from cotswold.training.losses import CustomLoss, Loss, cross_entropy, is_sum, sum_squared_error

FEATURES, CLASSES = 6, 3


class Masked(nn.Module):
    """A layer whose outputs are mixed by a mask of -inf, as in attention."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.full((CLASSES, CLASSES), -torch.inf).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs) @ self.mask.softmax(-1)
        return found


def test_a_mask_of_infinities_is_no_divergence(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run", module=Masked(), validation=labelled(), settings=settings(epochs=1)))
    assert events(run, "end")[0]["status"] == "finished"


def test_a_module_is_trained_on_the_device_on_which_it_is() -> None:
    elsewhere = nn.Linear(2, 2, device="meta")  # any that is not the CPU
    assert with_module_device(elsewhere, settings()).device == "meta"
    assert with_module_device(elsewhere, settings(device="cpu")).device == "cpu"
    assert with_module_device(nn.Linear(2, 2), settings()).device == "cpu"
    with pytest.raises(UserError, match="has tensors on cpu and meta; give device="):
        with_module_device(nn.Sequential(nn.Linear(2, 2), elsewhere), settings())


def test_a_module_without_values_or_that_cannot_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weight, bias of Linear are on the device meta"):
        opened(tmp_path / "meta", module=nn.Linear(FEATURES, CLASSES, device="meta"))
    with torch.inference_mode():
        module = nn.Linear(FEATURES, CLASSES)
    with pytest.raises(UserError, match=r"weight, bias of Linear were made under torch\.inference_mode"):
        opened(tmp_path / "inference", module=module)


def test_samples_without_values_are_refused(tmp_path: Path) -> None:
    data = torch.ones(8, FEATURES, device="meta"), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(UserError, match="gives tensors on the device meta"):
        train(opened(tmp_path / "run", module=nn.Linear(FEATURES, CLASSES), dataset=data))


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.complex64, torch.float64])
def test_samples_of_a_type_that_the_module_does_not_take_are_named(kind: torch.dtype, tmp_path: Path) -> None:
    data = torch.ones(8, FEATURES, dtype=kind), torch.zeros(8, dtype=torch.int64)
    said = rf"the samples are {str(kind).removeprefix('torch.')}, but the parameters of Linear are float32"
    with pytest.raises(UserError, match=said):
        train(opened(tmp_path / "run", module=nn.Linear(FEATURES, CLASSES), dataset=data))


def test_an_embedding_that_is_given_floats_says_what_it_takes(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))
    data = torch.ones(8, FEATURES), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(UserError, match=r"an embedding of Sequential needs integers.*samples\.long"):
        train(opened(tmp_path / "run", module=module, dataset=data))


def test_parameters_that_lie_in_no_vector_are_told_which_strategy_takes_them() -> None:
    with pytest.raises(UserError, match=r"are torch.complex64 on cpu; .*train with strategy supervised"):
        FlatParameters(nn.Linear(2, 2, dtype=torch.complex64))


def spoilt(part: int) -> TensorDataset:
    """Return samples of which number 13 holds NaN, in its input (0) or its target (1)."""
    tensors = [torch.ones(40, FEATURES), torch.ones(40, CLASSES)]
    tensors[part][13, 1] = torch.nan
    return TensorDataset(*tensors)


@pytest.mark.parametrize("part", [0, 1])
def test_a_sample_that_is_not_finite_is_named(part: int, tmp_path: Path) -> None:
    """The message has its index in the data set, even if some samples are used for validation."""
    what = ["input", "target"][part]
    words: dict[str, Any] = {"module": nn.Linear(FEATURES, CLASSES), "loss": "squared_error"}
    with pytest.raises(DivergedError, match=f"sample 13 of the data set has NaN or infinity in its {what}"):
        train(opened(tmp_path / "run", dataset=spoilt(part), validation=0.1, **words))
    good = TensorDataset(torch.ones(8, FEATURES), torch.ones(8, CLASSES))
    with pytest.raises(UserError, match=f"a sample of the validation set has NaN or infinity in its {what}"):
        train(opened(tmp_path / "validated", dataset=good, validation=spoilt(part), **words))


def test_workers_and_replicas_name_a_sample_that_is_not_finite() -> None:
    samples = DatasetSamples(Samples(spoilt(0), 8).subset(range(10, 40)))
    for work in (
        ReplicaTask(nn.Linear(FEATURES, CLASSES), sum_squared_error, samples, (0, 0)).compute,
        ModuleObjective(nn.Linear(FEATURES, CLASSES), sum_squared_error, samples, None).add,
    ):
        with pytest.raises(UserError, match="sample 13 of the data set has NaN"):
            work(range(8), torch.zeros(FEATURES * CLASSES + CLASSES))


def test_a_divergence_by_large_targets_advises_to_standardise_them(tmp_path: Path) -> None:
    data = TensorDataset(torch.ones(40, FEATURES), torch.full((40, CLASSES), 3e25))
    with pytest.raises(DivergedError, match=r"the targets reach 3e\+25: standardise them"):
        train(
            opened(tmp_path / "run", module=nn.Linear(FEATURES, CLASSES), dataset=data, loss="squared_error")
        )


class Counting(nn.Module):
    """A module that writes a mean of its inputs directly, always or only in training."""

    mean: Tensor

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.layer, self.always = nn.Linear(FEATURES, CLASSES), always
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training or self.always:
            self.mean += 0.1 * (inputs.detach().mean(0) - self.mean)
        found: Tensor = self.layer(inputs)
        return found


def test_a_buffer_that_changes_is_refused_where_each_process_would_have_its_own() -> None:
    samples = DatasetSamples(Samples(labelled(), 8))
    with pytest.raises(
        UserError, match=r"mean of Counting is changed while the module computes; with strategy"
    ):
        try_in_fork(Counting(always=False), cross_entropy, samples)
    with pytest.raises(UserError, match=r"mean of Counting is changed .* with strategy batch"):
        check_repeatable(ModuleObjective(Counting(always=True), cross_entropy, samples, None), 8)
    frozen = Counting(always=False)
    check_repeatable(ModuleObjective(frozen, cross_entropy, samples, None), 8)
    assert not frozen.mean.any()


@pytest.mark.parametrize(
    ("function", "is_one"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), True),
        (partial(functional.cross_entropy, reduction="sum"), True),
        (lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="sum"), True),
        (functional.cross_entropy, False),
        (nn.CrossEntropyLoss(), False),
        (
            lambda outputs, targets: functional.cross_entropy(outputs, targets) + outputs.square().mean(),
            False,
        ),
        (lambda outputs, targets: outputs.view(8, -1).square().mean(), False),  # takes whole batches
        (lambda outputs, targets: outputs.sum() * 0, False),
    ],
)
def test_a_loss_that_is_a_sum_over_samples_is_found_out(function: Loss, is_one: bool) -> None:
    loss = CustomLoss(function)
    loss(torch.randn(8, CLASSES).requires_grad_(), torch.arange(8) % CLASSES)
    assert is_sum(loss) == is_one


class Remembering(nn.Module):
    """A sum over samples with random noise, which counts its calls and keeps a mean of its targets."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        self.seen += targets.float().mean()
        noise = 1e-6 * (random.random() + np.random.random() + float(torch.rand(())))
        return functional.cross_entropy(outputs, targets, reduction="sum") + noise


@pytest.mark.parametrize("is_method", [False, True])
def test_what_a_loss_counts_and_draws_is_not_changed_by_the_search_for_a_sum(is_method: bool) -> None:
    own = Remembering()
    loss = CustomLoss(own.forward if is_method else own)
    outputs, targets = torch.randn(8, CLASSES).requires_grad_(), torch.arange(8) % CLASSES
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    own.forward(outputs, targets)
    once = random.random(), np.random.random(), float(torch.rand(()))
    seen = own.seen.clone()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loss(outputs, targets)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == once
    assert is_sum(loss) and own.calls == 2 and torch.equal(own.seen, 2 * seen)


def test_a_sum_that_is_taken_for_a_mean_is_said_once(tmp_path: Path) -> None:
    job = opened(tmp_path / "run", loss=nn.CrossEntropyLoss(reduction="sum"), settings=settings(epochs=1))
    with pytest.warns(UserWarning, match="the loss is a sum over samples") as said:
        run = train(job)
    assert len(said) == 1
    assert "the loss is a sum" in str(events(run, "end")[0]["warning"])
    samples = DatasetSamples(Samples(labelled(), 8))
    with pytest.raises(UserError, match="the loss is a sum over samples"):
        check_repeatable(ModuleObjective(nn.Linear(FEATURES, CLASSES), job.loss, samples, None), 8)
