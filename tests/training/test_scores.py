"""Targets that count in losses and accuracies, and their weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import events
from tests.training.jobs.test_module_job import opened, settings, train
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from cotswold.errors import UserError
from cotswold.shards.runtime.work import PortionSum, validation_means
from cotswold.training.async_sgd.replica_task import Evaluator, ReplicaTask
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import Samples
from cotswold.training.losses import (
    CustomLoss,
    Loss,
    bce_with_logits,
    cross_entropy,
    loss_by_name,
    sum_squared_error,
)
from cotswold.training.scores import score

SCORES = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [5.0, 4.0]])


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (loss_by_name("cross_entropy"), -100),
        (CustomLoss(functional.cross_entropy), -100),
        (CustomLoss(nn.CrossEntropyLoss(ignore_index=7)), 7),
        (CustomLoss(partial(functional.cross_entropy, ignore_index=7)), 7),
        (CustomLoss(lambda output, target: functional.cross_entropy(output, target, ignore_index=-1)), -1),
    ],
)
def test_a_target_that_the_loss_leaves_out_is_neither_right_nor_wrong(loss: Loss, ignored: int) -> None:
    found = score(loss, SCORES, torch.tensor([0, 1, 1, ignored]))
    if ignored == 7:  # no class of these outputs: also a class may be ignored
        found = score(loss, torch.cat([SCORES, torch.zeros(4, 6)], 1), torch.tensor([0, 1, 1, ignored]))
    assert (found.correct, found.scored, found.accuracy, found.weight) == (2, 3, 2 / 3, 3.0)


def test_a_class_that_is_left_out_need_not_be_one_of_the_outputs() -> None:
    found = score(CustomLoss(nn.CrossEntropyLoss(ignore_index=7)), SCORES, torch.tensor([0, 1, 1, 7]))
    assert (found.correct, found.scored, found.accuracy, found.sums["right"]) == (2, 3, 2 / 3, 2.0)


def test_a_batch_that_cannot_be_judged_counts_neither_as_right_nor_as_wrong() -> None:
    loss = CustomLoss(lambda output, target: functional.cross_entropy(output, target, ignore_index=7))
    found = score(loss, SCORES, torch.tensor([0, 1, 1, 7]))
    assert found.accuracy is None and found.sums == {"unjudged": 4.0} and found.weight == 4
    assert score(loss, SCORES, torch.tensor([0.5, 1.0, 1.0, 7.0])).sums == {}, "numbers are no classes"


@pytest.mark.parametrize("loss", [cross_entropy, CustomLoss(nn.CrossEntropyLoss())])
def test_a_batch_of_which_everything_is_left_out_has_a_loss_of_0_and_no_gradient(loss: Loss) -> None:
    outputs = SCORES.clone().requires_grad_()
    value = loss(outputs, torch.full((4,), -100))
    value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert value == 0
    assert outputs.grad is not None
    assert not outputs.grad.any()


def test_a_loss_that_is_no_number_stays_none() -> None:
    assert cross_entropy(SCORES / 0, torch.tensor([0, -100, -100, -100])).isnan()
    assert cross_entropy(SCORES / 0, torch.full((4,), -100)).isnan()


class Constant(nn.Module):
    """Predicts class 0 of two, for any input."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.bias.expand(len(inputs), 2)


def partly_labelled() -> TensorDataset:
    """Return zeros, every other one without a label, and a whole batch of 8 without labels."""
    targets = torch.zeros(32, dtype=torch.int64)
    targets[::2], targets[8:16] = -100, -100
    return TensorDataset(torch.zeros(32, 4), targets)


def test_samples_without_a_label_leave_no_mark_in_a_run(tmp_path: Path) -> None:
    run = train(
        opened(
            tmp_path / "run",
            module=Constant(),
            dataset=partly_labelled(),
            validation=partly_labelled(),
            settings=settings(epochs=2),
        )
    )
    told = [*events(run, "step"), *events(run, "validation")]
    assert {each["accuracy"] for each in told} == {1.0}
    first = functional.cross_entropy(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert events(run, "validation")[0]["loss"] == pytest.approx(float(first))
    assert list(run.best.iterdir())


def test_replicas_and_their_evaluator_leave_out_the_same_samples() -> None:
    samples = DatasetSamples(Samples(partly_labelled(), 8))
    work = ReplicaTask(Constant(), cross_entropy, samples, (0, 0))
    found = work.compute(range(32), torch.zeros(2))
    means = Evaluator(Constant(), cross_entropy, samples, 8).means(torch.tensor([1.0, 0.0]))
    assert means is not None
    assert (found.details["right"], found.weight, means["accuracy"]) == (12, 12, 1.0)
    assert found.value / found.weight == pytest.approx(means["loss"])


def test_a_validation_set_without_a_label_is_refused(tmp_path: Path) -> None:
    none = TensorDataset(torch.zeros(8, 4), torch.full((8,), -100))
    with pytest.raises(UserError, match="ignores every target of the validation set"):
        train(opened(tmp_path / "run", module=Constant(), dataset=partly_labelled(), validation=none))


def test_means_over_portions_count_what_the_loss_counts() -> None:
    sums = [PortionSum(8.0, 8, {"accuracy": 8.0}), PortionSum(0.0, 8, {"accuracy": 0.0, "left_out": 8.0})]
    assert validation_means(sums) == {"loss": 1.0, "accuracy": 1.0}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("loss", [sum_squared_error, bce_with_logits, cross_entropy])
def test_classes_of_any_whole_number_type_are_classes(kind: torch.dtype, loss: Loss) -> None:
    targets = torch.tensor([0, 1, 1, 0])
    assert loss(SCORES, targets.to(kind)).equal(loss(SCORES, targets))


def test_whole_numbers_are_no_classes_of_a_single_output() -> None:
    with pytest.raises(UserError, match=r"the module has one output; for regression give targets\.float"):
        sum_squared_error(SCORES[:, :1], torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("loss", [bce_with_logits, CustomLoss(functional.binary_cross_entropy_with_logits)])
def test_one_detector_has_an_accuracy(loss: Any) -> None:
    outputs, targets = torch.tensor([[1.0], [-1.0], [2.0], [3.0]]), torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    assert score(loss, outputs, targets).accuracy == 0.75
    assert score(loss, outputs.flatten(), targets.flatten()).accuracy == 0.75
    assert score(loss, outputs, targets / 2).accuracy is None


def test_one_detector_learns_from_classes_0_and_1() -> None:
    outputs, targets = torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])
    assert bce_with_logits(outputs, targets).equal(bce_with_logits(outputs, targets.float().unsqueeze(1)))
    assert score(bce_with_logits, outputs, targets).accuracy == 1.0


def test_a_detector_is_taught_nothing_beside_0_and_1() -> None:
    with pytest.raises(UserError, match="targets lie between -1 and 2, but bce_with_logits needs 0, 1 or"):
        bce_with_logits(torch.zeros(2, 1), torch.tensor([[-1.0], [2.0]]))
