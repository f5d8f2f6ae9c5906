"""Inputs and targets from a program: arrays, inputs of several parts, weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.api.train import train_with
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import cotswold
from cotswold.errors import UserError
from cotswold.training.data.batches import Inputs, batch_of, call_with_parts, weighted
from cotswold.training.data.user_datasets import Samples, data_set, training_batches
from cotswold.training.loss_weights import divisor_of, loss_weight, possible_weights
from cotswold.training.losses import CustomLoss, cross_entropy
from cotswold.training.nonfinite_loss import describe_nonfinite_sample
from cotswold.training.strategies.base import Batch

CPU = torch.device("cpu")


def first(given: object, size: int = 4) -> Batch:
    return next(iter(training_batches(Samples(data_set(given), size, shuffled=False), size, 0, CPU)))  # type: ignore[arg-type]  # map-style


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.uint16])
@pytest.mark.parametrize("labels", [np.int32, np.uint8, np.int64])
def test_arrays_are_inputs_and_classes(kind: type, labels: type) -> None:
    batch = first((np.arange(12).reshape(6, 2).astype(kind), np.arange(6).astype(labels)))
    assert batch.inputs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert batch.inputs.dtype == (torch.int64 if kind is np.uint16 else torch.float32)
    assert batch.targets is not None and batch.targets.dtype == torch.int64


def test_arrays_and_tensors_mix_and_numbers_to_predict_stay_floats() -> None:
    batch = first((torch.ones(6, 2), np.ones((6, 1))))
    assert batch.targets is not None and batch.targets.dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.ones((3, 2)), np.ones(4)), "of equal length, got 3, 4"),
        ((np.ones(3), np.ones(3), np.ones(3)), "got 3, 3, 3; give inputs of several parts as a tuple"),
        ((np.array(["a", "b"]), np.ones(2)), "type <U1"),
        ((np.ones(2), np.array([None, 1])), "type object"),
        ((np.array(1.0), np.ones(1)), r"shape \(\)"),
        ((np.ones(2), (np.ones(2), np.ones(2))), "targets have several parts"),
        (((np.ones(2), np.ones(3)), np.ones(2)), "of equal length, got 2, 3, 2"),
        (("a", "b"), "inputs may be a tuple or a dict"),
    ],
)
def test_what_is_no_column_of_numbers_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        data_set(given)


class Sum(nn.Module):
    """A module of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        out: Tensor = self.layer(left + 2 * right)
        return out


class Whole(Sum):
    """The same module with one dict as input."""

    def forward(self, parts: dict[str, Tensor]) -> Tensor:  # type: ignore[override]  # another call
        return super().forward(**parts)


def parts(kind: str) -> Any:
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(40, 3, generator=random) for _ in range(2))
    targets = ((left + 2 * right)[:, 0] > 0).long()
    whole: Any = {"right": right, "left": left} if kind == "dict" else (left, right)
    return whole, targets


@pytest.mark.parametrize("strategy", ["supervised", "batch"])
@pytest.mark.parametrize(
    ("make", "kind"), [(Sum, "tuple"), (Sum, "dict"), (Whole, "dict")], ids=["tuple", "dict", "one dict"]
)
def test_inputs_of_several_parts_are_arguments_of_the_module(
    strategy: str, make: Callable[[], nn.Module], kind: str, tmp_path: Path
) -> None:
    module = make()
    more: dict[str, Any] = (
        {"max_iterations": 9} if strategy == "batch" else {"epochs": 20, "learning_rate": 1.0}
    )
    run = train_with(
        module,
        parts(kind),
        directory=tmp_path,
        loss="cross_entropy",
        strategy=strategy,
        progress=False,
        **more,
    )
    found = [float(str(event["loss"])) for event in run.events if event["kind"] == "step"]
    assert found[-1] < 0.4
    assert not module._forward_pre_hooks, "the program has its module back"


class Triples(Dataset[Any]):
    """Samples with weights: of class 0, except one of weight 0."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        return torch.ones(3), int(index == 3), float(index != 3)


def test_weights_multiply_the_losses_of_samples() -> None:
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets, weights = torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 0.0, 2.0, 0.5])
    found = weighted(cross_entropy, outputs, Batch(outputs, targets, weights=weights))
    by_hand = (weights * nn.functional.cross_entropy(outputs, targets, reduction="none")).mean()
    assert torch.allclose(found, by_hand)
    even = weighted(cross_entropy, outputs, Batch(outputs, targets, weights=torch.ones(4, 1)))
    assert torch.allclose(even, cross_entropy(outputs, targets))


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (torch.arange(8), "is an integer .*; omit a sample's index"),
        (torch.linspace(-1, 1, 8), "a sample has the weight -1, "),
    ],
)
def test_what_is_no_weight_is_refused(third: Tensor, said: str) -> None:
    with pytest.raises(UserError, match=said):
        batch_of((torch.ones(8, 3), torch.zeros(8), third), torch.device("cpu"))


def test_a_weight_that_is_no_number_is_named() -> None:
    weights = torch.tensor([1.0, nan, 1.0])
    assert "NaN or infinity in its weight" in describe_nonfinite_sample(
        Batch(torch.ones(3, 2), torch.zeros(3), weights=weights)
    )


def test_a_sample_without_weight_is_not_learnt(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    cotswold.train(
        module,
        Triples(),
        directory=tmp_path,
        loss="cross_entropy",
        epochs=60,
        batch_size=8,
        learning_rate=1.0,
        progress=False,
    )
    assert torch.softmax(module(torch.ones(3)), 0)[0] > 0.97


def test_weights_are_refused_where_they_would_be_ignored(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only strategy supervised supports weights"):
        cotswold.train(
            nn.Linear(3, 2),
            Triples(),
            directory=tmp_path,
            loss="cross_entropy",
            strategy="batch",
            progress=False,
        )


class Ragged(Dataset[Any]):
    def __init__(self, odd: object) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> object:
        return self.odd if index == 3 else (torch.zeros(4), 0)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ((torch.zeros(5), 0), r"samples 0 and 3 cannot form a batch: one is \(Tensor of \(4,\), int\)"),
        (None, "samples 0 and 3 cannot form a batch: .* the other NoneType"),
        ((torch.zeros(4), 0, 1, 2), "samples 0 and 3 cannot form a batch"),
    ],
)
def test_samples_that_make_no_batch_are_named(odd: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        first(Ragged(odd))


class Ending(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 5:
            raise StopIteration
        return torch.zeros(4), 0


@pytest.mark.parametrize("loader", [False, True])
def test_a_sample_that_raises_stop_iteration_does_not_end_an_epoch(loader: bool) -> None:
    given: Any = DataLoader(Ending(), 4) if loader else Ending()
    batches = training_batches(given, 4, 0, CPU)
    with pytest.raises(UserError, match=r"Ending (raised StopIteration|ended epoch 0 after 1 of 2 batches)"):
        list(islice(batches, 4))


def test_samples_of_a_loader_that_have_not_one_shape_are_said() -> None:
    loader = DataLoader(Ragged((torch.zeros(5), 0)), 4)
    with pytest.raises(UserError, match="have different shapes"):
        next(iter(training_batches(loader, 4, 0, CPU)))


def test_a_hook_leaves_other_calls_as_they_are() -> None:
    module = Sum()
    assert call_with_parts(module, (torch.ones(1),), {}) is None
    assert call_with_parts(module, (Inputs((torch.ones(1),)),), {})[0] == ((torch.ones(1),),)  # type: ignore[index]  # any value


def test_a_sample_without_a_counted_target_weighs_nothing() -> None:
    outputs = torch.tensor([[2.0, 1.0, 0.5], [0.1, 0.2, 0.3]], requires_grad=True)
    batch = Batch(outputs, torch.tensor([0, -100]), weights=torch.tensor([1.0, 3.0]))
    found = weighted(cross_entropy, outputs, batch)
    assert float(found.detach()) == pytest.approx(
        float(cross_entropy(outputs[:1].detach(), torch.tensor([0]))) / 2
    )
    found.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert outputs.grad is not None and bool(torch.isfinite(outputs.grad).all()) and not outputs.grad[1].any()


@pytest.mark.parametrize("pixels", [(), (3, 2)], ids=["a class", "a class a pixel"])
def test_weights_of_classes_multiply_those_of_samples(pixels: tuple[int, ...]) -> None:
    of_class, weights = torch.tensor([1.0, 5.0, 0.5]), torch.tensor([1.0, 3.0, 2.0, 0.0])
    generator = torch.Generator().manual_seed(1)
    outputs = torch.randn(4, 3, *pixels, generator=generator)
    targets = torch.randint(3, (4, *pixels), generator=generator)
    found = weighted(nn.CrossEntropyLoss(weight=of_class), outputs, Batch(outputs, targets, weights=weights))
    each = nn.functional.cross_entropy(outputs, targets, weight=of_class, reduction="none")
    assert torch.allclose(found, (weights * each.reshape(4, -1).mean(1)).mean())


def test_a_target_of_a_class_without_weight_is_not_counted() -> None:
    loss = CustomLoss(nn.CrossEntropyLoss(weight=torch.tensor([0.0, 2.0])))
    outputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(2), requires_grad=True)
    targets = torch.tensor([0, 1, 0, 1])
    whole, parts = loss(outputs, targets), [slice(0, 1), slice(1, 4)]
    batches = [Batch(outputs[part], targets[part]) for part in parts]
    weights = [loss_weight(loss, batch, batch.inputs, possible_weights(loss, batch)) for batch in batches]
    total = sum(
        float(loss(batch.inputs, targets[part]).detach()) * weight.value
        for batch, part, weight in zip(batches, parts, weights, strict=True)
    )
    assert total / divisor_of(weights) == pytest.approx(float(whole.detach()))
    by_sample = Batch(outputs, targets, weights=torch.ones(4))
    assert float(weighted(loss, outputs, by_sample).detach()) == pytest.approx(float(whole.detach()))
