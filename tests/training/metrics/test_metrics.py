"""Metrics by name, as objects and as functions: their values, weights, states and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.errors import RecipeError, UserError
from cotswold.training.losses import bce_with_logits, cross_entropy, sum_squared_error
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.metrics.registry import METRICS, named_metrics

skl = pytest.importorskip("sklearn.metrics")
Numbers = NDArray[np.float64]
Reference = Callable[[Numbers, Numbers, "Numbers | None"], float]


def _answers(of: Callable[..., float], **words: Any) -> Reference:
    return lambda out, right, weight: of(right, out.argmax(1), sample_weight=weight, **words)


def _softmax(out: Numbers) -> Numbers:
    powers: Numbers = np.exp(out - out.max(1, keepdims=True))
    found: Numbers = powers / powers.sum(1, keepdims=True)
    return found


CLASSES: dict[str, Reference] = {
    "accuracy": _answers(skl.accuracy_score),
    "macro_precision": _answers(skl.precision_score, average="macro", zero_division=0),
    "macro_recall": _answers(skl.recall_score, average="macro", zero_division=0),
    "macro_f1": _answers(skl.f1_score, average="macro", zero_division=0),
    "top2": lambda out, right, weight: skl.top_k_accuracy_score(right, out, k=2, sample_weight=weight),
    "auroc": lambda out, right, weight: np.mean(
        [skl.roc_auc_score(right == one, _softmax(out)[:, one], sample_weight=weight) for one in range(4)]
    ),
}
NUMBERS: dict[str, Reference] = {
    "mae": lambda out, right, weight: skl.mean_absolute_error(right, out, sample_weight=weight),
    "rmse": lambda out, right, weight: skl.mean_squared_error(right, out, sample_weight=weight) ** 0.5,
    "r2": lambda out, right, weight: skl.r2_score(right, out, sample_weight=weight),
}


def drawn(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs with ties, targets and weights of 60 samples."""
    numbers = np.random.default_rng(3)
    out = np.round(numbers.normal(size=(60, 4)), 1) + np.arange(60 * 4).reshape(60, 4) * 1e-6
    if name in NUMBERS:
        right: NDArray[Any] = out + numbers.normal(size=out.shape) + 1e4 * np.arange(4)
        out = out + 1e4 * np.arange(4)
    else:
        right = numbers.integers(0, 4, 60)
        out[np.arange(60), right] += 1
    return torch.from_numpy(out), torch.from_numpy(right), torch.from_numpy(numbers.uniform(size=60))


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_a_named_metric_has_the_value_of_scikit_learn_for_any_batches(name: str, is_weighted: bool) -> None:
    out, right, weight = drawn(name)
    parts, metric = (slice(0, 7), slice(7, 8), slice(8, 60)), named_metrics([name])[name]
    for part in parts:
        metric.update(out[part], right[part], *([weight[part]] if is_weighted else []))
    reference = {**CLASSES, **NUMBERS}[name]
    wanted = reference(out.numpy(), right.numpy(), weight.numpy() if is_weighted else None)
    assert metric.compute() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("name", [*METRICS, "top3"])
def test_the_merged_states_of_processes_give_the_value_of_one_process(name: str) -> None:
    out, right, weight = drawn(name)
    loss = sum_squared_error if name in NUMBERS else cross_entropy
    whole = MetricSet([name], loss)
    whole.update(out, right, weight)
    several = [MetricSet([name], loss) for _ in range(3)]
    for number, part in enumerate((slice(0, 20), slice(20, 60))):
        several[number].update(out[part], right[part], weight[part])
    several[2].merge([each.state() for each in several])  # the third has no samples
    assert several[2].compute()[name] == pytest.approx(whole.compute()[name], rel=1e-12)
    several[2].reset()
    assert math.isnan(several[2].compute()[name])


def test_a_metric_of_torchmetrics_is_measured_and_merged() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    out, right, _ = drawn("accuracy")
    sets = [
        MetricSet([classification.MulticlassF1Score(4, average="macro")], cross_entropy) for _ in range(2)
    ]
    sets[0].update(out[:25], right[:25])
    sets[1].update(out[25:], right[25:])
    sets[0].merge([each.state() for each in sets])
    wanted = skl.f1_score(right, out.argmax(1), average="macro")
    assert sets[0].compute() == {"MulticlassF1Score": pytest.approx(wanted)}


def test_a_collection_of_torchmetrics_gives_a_value_for_each_name() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    members = {
        "top": torchmetrics.classification.MulticlassAccuracy(4, average="micro"),
        "recall": torchmetrics.classification.MulticlassRecall(4),
    }
    found = MetricSet([torchmetrics.MetricCollection(members)], cross_entropy)
    out, right, _ = drawn("accuracy")
    found.update(out, right)
    assert found.compute() == {
        "top": pytest.approx(skl.accuracy_score(right, out.argmax(1))),
        "recall": pytest.approx(skl.recall_score(right, out.argmax(1), average="macro")),
    }


def far(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) != target).float().mean())


def test_a_function_is_averaged_by_samples() -> None:
    found = MetricSet([far, far, lambda output, target: torch.tensor(2.0)], cross_entropy)
    for out, right in (([[1.0, 0.0]], [1]), ([[1.0, 0.0]] * 3, [0, 0, 0])):
        found.update(torch.tensor(out), torch.tensor(right))
    assert found.compute() == {"far": 0.25, "far_2": 0.25, "lambda": 2.0}


class Seen:
    """A metric of a program that keeps what it receives."""

    name = "seen"

    def __init__(self) -> None:
        self.targets: list[int] = []
        self.weights: list[float] = []

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        self.targets += target.tolist()
        self.weights += [] if weight is None else weight.tolist()

    def compute(self) -> float:
        return float(len(self.targets))

    def reset(self) -> None:
        self.targets, self.weights = [], []


def test_targets_that_the_loss_ignores_are_left_out_with_their_weights() -> None:
    seen = Seen()
    found = MetricSet(["accuracy", "top1", seen], cross_entropy)
    out = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found.update(out, torch.tensor([0, -100, 1]), torch.tensor([[3.0], [5.0], [1.0]]))
    assert found.compute() == {"accuracy": 0.75, "top1": 0.75, "seen": 2.0}
    assert (seen.targets, seen.weights) == ([0, 1], [3.0, 1.0])
    found.update(out, torch.full((3,), -100))
    assert found.compute()["accuracy"] == 0.75


def test_dense_targets_count_each_position() -> None:
    out = torch.zeros(2, 3, 4, 5)
    out[:, 1] = 1.0
    right = torch.ones(2, 4, 5, dtype=torch.int64)
    right[0], right[1, 0] = 0, -100
    found = MetricSet(["accuracy", "macro_recall"], cross_entropy)
    found.update(out, right, torch.tensor([1.0, 2.0]))
    assert found.compute() == {"accuracy": pytest.approx(30 / 50), "macro_recall": 0.5}


def test_one_detector_has_the_metrics_of_two_classes() -> None:
    out, right = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]]), torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    found = MetricSet(["accuracy", "auroc", "macro_f1"], bce_with_logits)
    found.update(out, right)
    assert found.compute() == {"accuracy": 0.5, "auroc": 0.5, "macro_f1": 0.5}


def test_several_detectors_have_a_mean_area() -> None:
    out = torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 3.0]])
    found = MetricSet(["auroc"], bce_with_logits)
    found.update(out, torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert found.compute() == {"auroc": 0.5}


def test_r2_leaves_out_targets_that_do_not_vary() -> None:
    out = torch.tensor([[1.0, 7.0], [2.0, 7.0], [3.5, 7.0]])
    found = MetricSet(["r2"], sum_squared_error)
    found.update(out, torch.tensor([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]]))
    assert found.compute() == {"r2": pytest.approx(1 - 0.25 / 2)}


def test_errors_of_standardised_targets_are_in_their_own_unit() -> None:
    found = MetricSet(["mae"], sum_squared_error, lambda values: values * 10 + 3)
    found.update(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [2.0]]))
    assert found.compute() == {"mae": pytest.approx(2.5)}


@pytest.mark.parametrize(
    ("given", "out", "right", "message"),
    [
        ("mae", (4, 3), torch.zeros(4, dtype=torch.int64), r"metric mae .* targets \(4,\); for classes use"),
        ("mae", (4, 1), torch.zeros(4), r"outputs have the shape \(4, 1\), the targets \(4,\)"),
        (
            "accuracy",
            (4, 3),
            torch.zeros(4, 3),
            "metric accuracy cannot be measured: accuracy needs",
        ),
        ("auroc", (4, 3), torch.full((4, 3), 0.5), "auroc needs classes"),
        ("top5", (4, 3), torch.zeros(4, dtype=torch.int64), "top5 needs at least 5 classes, .* have 3"),
        ("top2", (4, 3), torch.full((4,), 3), "classes from 3 to 3, but the outputs have 3 classes"),
        (lambda output, target: output, (4, 3), torch.zeros(4), r"lambda .* a Tensor of shape \(4, 3\)"),
        (lambda output, target: None, (4, 3), torch.zeros(4), "returned a NoneType; return one number"),
        (
            lambda output, target: float(output @ target),
            (4, 3),
            torch.zeros(5),
            r"the metric lambda failed on outputs of shape \(4, 3\) and float32 and targets of shape \(5,\)",
        ),
    ],
)
def test_a_metric_that_cannot_use_outputs_says_so(given: Any, out: Any, right: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MetricSet([given], cross_entropy).update(torch.zeros(out), right)


def test_outputs_that_are_no_tensor_are_for_objects_alone() -> None:
    seen = Seen()
    MetricSet([seen], cross_entropy).update({"a": torch.zeros(2, 2)}, torch.tensor([1, 0]))
    assert seen.targets == [1, 0]
    with pytest.raises(UserError, match="the module returned a dict, but it needs a tensor"):
        MetricSet(["accuracy"], cross_entropy).update({"a": torch.zeros(2, 2)}, torch.tensor([1, 0]))


class Several(Seen):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def compute(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), r"compute returned a tensor of shape \(3,\); return one number"),
        ("high", "compute returned a str; return one number"),
        ({"loss": 1.0}, "a value called loss, which is another field of a validation event"),
    ],
)
def test_a_value_that_is_no_number_is_refused(value: object, message: str) -> None:
    with pytest.raises(UserError, match=f"the metric seen cannot be measured: (it returned )?{message}"):
        MetricSet([Several(value)], cross_entropy).compute()


def test_a_metric_without_states_cannot_be_merged() -> None:
    with pytest.raises(UserError, match=r"seen cannot be measured by several processes; add state\(\)"):
        MetricSet([Seen()], cross_entropy).state()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("acuracy", RecipeError, "unknown metric 'acuracy'; did you mean accuracy"),
        ("top0", RecipeError, "unknown metric 'top0'"),
        (Seen, UserError, r"Seen is a class; give an object: Seen\(\)"),
        (3, UserError, "3 is not a metric; give a name"),
        (type("Loss", (Seen,), {"name": "loss"})(), UserError, "cannot have the name loss"),
    ],
)
def test_a_metric_that_cannot_be_made_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        named_metrics([given])


def test_samples_with_one_score_count_half_for_the_area() -> None:
    found = MetricSet(["auroc"], cross_entropy)
    out = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    found.update(out, torch.tensor([1, 0, 1, 0]))
    assert found.compute() == {"auroc": 0.875}
