"""A program's own module and data set, trained, stopped and resumed with the bits of an uninterrupted run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, events, last, losses
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from cotswold.errors import MismatchError, RecipeError, RunError, UserError
from cotswold.recipe import load
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import ModuleJob, Resume, open_module_job
from cotswold.training.losses import cross_entropy

FEATURES, CLASSES, SAMPLES = 6, 3, 50


class Net(nn.Module):
    """Linear layers with batch normalisation and dropout, whose buffers and random states a run must keep."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(functional.relu(self.norm(self.first(x)))))
        return out


class Shorter(Net):
    """The same without its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Identity()  # type: ignore[assignment]  # in its place


def net(hidden: int = 8) -> Net:
    torch.manual_seed(5)
    return Net(hidden)


def labelled() -> TensorDataset:
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=drawn)
    return TensorDataset(x, (x[:, :CLASSES]).argmax(1))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same samples, in their order, with a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([labelled()[index] for index in range(SAMPLES)])

    def __len__(self) -> int:
        return SAMPLES


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(Stream())


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    return DataLoader(labelled(), batch_size=8, sampler=sampler)


def settings(**fields: Any) -> SupervisedTraining:
    return SupervisedTraining(
        strategy="supervised", **{"batch_size": 8, "epochs": 3, "learning_rate": 0.1, "threads": 1, **fields}
    )


def opened(run: Path, **words: Any) -> ModuleJob:
    given: dict[str, Any] = {"module": net(), "dataset": labelled(), "loss": "cross_entropy"}
    given |= {"settings": settings(), **words}
    return open_module_job(given.pop("module"), given.pop("dataset"), directory=run, **given)


def train(job: ModuleJob, stop_at: int = 0) -> RunDirectory:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    assert job.train(watch, stop) == (stop_at == 0)
    return job.run


@pytest.mark.parametrize(
    "data", [labelled, Stream, weighted, lambda: DataLoader(labelled(), 8, shuffle=True)]
)
@pytest.mark.parametrize("stop_at", [1, 6, 8])
def test_a_stopped_run_goes_on_with_the_same_bits(
    tmp_path: Path, data: Callable[[], Any], stop_at: int
) -> None:
    whole = train(opened(tmp_path / "whole", dataset=data(), validation=labelled()))
    train(opened(tmp_path / "parts", dataset=data(), validation=labelled()), stop_at)
    torch.manual_seed(99)  # whatever was drawn meanwhile
    job = opened(tmp_path / "parts", dataset=data(), validation=labelled(), resume=Resume.ALWAYS)
    assert bits(train(job)) == bits(whole)


def test_a_run_learns_measures_and_leaves_the_module_trained(tmp_path: Path) -> None:
    module = net()
    before = copy.deepcopy(module.state_dict())
    job = opened(tmp_path / "run", module=module, validation=0.2, settings=settings(epochs=12))
    run = train(job)
    assert losses(run)[-1] < 0.7 * losses(run)[0]
    assert float(str(events(run, "validation")[-1]["accuracy"])) > 0.6
    (start,) = events(run, "start")
    assert (start["samples"], start["parameters"]) == (40, sum(p.numel() for p in module.parameters()))
    kept = last(run.checkpoints)
    for name, value in module.state_dict().items():
        assert kept.read(f"network.{name}").equal(value)
        assert not value.equal(before[name])  # running means and the count of batches, too
    by_hand = 6 * (FEATURES * 8 + 8 * CLASSES) - 2 * FEATURES * 8  # no gradient by the input
    (end,) = events(run, "end")
    assert end["flops"] == by_hand * int(str(end["samples"]))


def test_the_directory_says_what_was_trained(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run", loss=functional.cross_entropy))
    recipe = load(run.recipe)
    assert (recipe.data.type, recipe.name, recipe.loss) == ("dataset", "Net", "custom")
    assert recipe.network.module is not None and recipe.network.module.endswith("test_module_job.Net")


def test_the_same_numbers_come_from_a_loss_by_name_and_by_function(tmp_path: Path) -> None:
    one = train(opened(tmp_path / "one"))
    other = train(opened(tmp_path / "other", loss=functional.cross_entropy))
    assert bits(one)[0] == bits(other)[0]


def test_values_that_are_no_classes_are_learnt_without_an_accuracy(tmp_path: Path) -> None:
    x = labelled().tensors[0]
    job = opened(tmp_path / "run", dataset=TensorDataset(x, x[:, :CLASSES].tanh()), loss="squared_error")
    run = train(job)
    assert "accuracy" not in events(run, "step")[-1]
    assert float(str(events(run, "step")[-1]["loss"])) < float(str(events(run, "step")[0]["loss"]))


@pytest.mark.parametrize("loss", ["squared_error", "bce_with_logits"])
def test_targets_that_would_be_broadcast_or_are_no_classes_are_refused(tmp_path: Path, loss: str) -> None:
    x = labelled().tensors[0]
    with pytest.raises(UserError, match=r"targets of shape \(8,\) do not fit outputs of shape \(8, 3\)"):
        train(opened(tmp_path / "shape", dataset=TensorDataset(x, x[:, 0]), loss=loss))
    sevens = torch.full((len(x),), 7)
    with pytest.raises(UserError, match="classes from 7 to 7, but the module has 3 outputs"):
        train(opened(tmp_path / "classes", dataset=TensorDataset(x, sevens), loss=loss))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.zeros(SAMPLES), r"floats of shape \(8,\), but cross_entropy needs classes"),
        (torch.ones(SAMPLES, CLASSES), "or one probability for each class"),
        (torch.zeros(SAMPLES, 1, dtype=torch.int64), r"shape \(8, 1\) do not fit as classes to outputs"),
        (torch.full((SAMPLES,), 3), "classes from 3 to 3, but the module has 3 outputs"),
    ],
)
def test_targets_that_are_no_classes_are_refused_by_cross_entropy(
    tmp_path: Path, targets: Tensor, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        train(opened(tmp_path / "run", dataset=TensorDataset(labelled().tensors[0], targets)))


def test_cross_entropy_takes_classes_of_any_integer_type_and_probabilities() -> None:
    outputs, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, -100])
    wanted = functional.cross_entropy(outputs, classes)
    assert cross_entropy(outputs, classes.int()).equal(wanted)
    assert cross_entropy(outputs, outputs.softmax(1)).isfinite()


def column(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs[:, :1], targets)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (column, r"would broadcast targets of shape \(8,\)"),
        (lambda outputs, targets: 1.0, "the loss returned a float"),
        (lambda outputs, targets: outputs.sum(1), r"a tensor of shape \(8,\); it must return one number"),
        (lambda outputs, targets: outputs.detach().mean(), "does not depend on any trainable parameter"),
    ],
)
def test_a_loss_that_gives_no_number_to_learn_from_is_refused(tmp_path: Path, loss: Any, said: str) -> None:
    x = labelled().tensors[0]
    with pytest.raises(UserError, match=said):
        train(opened(tmp_path / "run", dataset=TensorDataset(x, x[:, 0]), loss=loss))


class Named(nn.Module):
    """Outputs with names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.inner(x)}


def test_a_module_may_give_what_its_loss_takes(tmp_path: Path) -> None:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs["scores"], targets)

    run = train(opened(tmp_path / "run", module=Named(), loss=loss, validation=0.2))
    assert losses(run)[-1] < losses(run)[0]
    assert "accuracy" not in events(run, "step")[-1]
    with pytest.raises(UserError, match="the module returned a dict"):
        train(opened(tmp_path / "named", module=Named()))


def test_early_stopping_keeps_the_best_and_more_epochs_extend_the_run(tmp_path: Path) -> None:
    stopping = settings(epochs=40, learning_rate=3.0, patience=2)
    run = train(opened(tmp_path / "run", validation=0.3, settings=stopping))
    found = losses(run)
    assert len(found) < 41 and min(found) == found[-3]
    assert last(run.best).step == events(run, "validation")[-3]["step"]
    more = settings(epochs=5)
    short = train(opened(tmp_path / "short"))
    again = train(opened(tmp_path / "short", settings=more, resume=Resume.ALWAYS))
    assert last(again.checkpoints).step == 5 * 7 and short.path == again.path
    assert events(again, "extended")[0]["epochs"] == [5.0]


def test_a_module_of_other_shapes_or_names_is_refused_by_name(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run"))
    other = net(9)
    with pytest.raises(
        MismatchError, match=r"^the module differs .*: first\.weight is .*\(8, 6\) there, but .*\(9, 6\)"
    ):
        train(opened(run.path, module=other, resume=Resume.ALWAYS))
    assert all(one.equal(new) for one, new in zip(other.parameters(), net(9).parameters(), strict=True))
    renamed = net()
    renamed.other = nn.Linear(2, 2)
    with pytest.raises(MismatchError, match=r"other\.weight is .* here, but missing there"):
        train(opened(run.path, module=renamed, resume=Resume.ALWAYS))
    with pytest.raises(MismatchError, match=r"last\.weight is .* there, but missing here"):
        train(opened(run.path, module=Shorter(), resume=Resume.ALWAYS))
    with pytest.raises(MismatchError, match=r"0\.first\.weight is .* here, but missing there"):
        train(opened(run.path, module=nn.Sequential(net()), resume=Resume.ALWAYS))


def test_another_data_set_or_other_settings_are_refused(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run"))
    fewer = TensorDataset(*(each[:40] for each in labelled().tensors))
    with pytest.raises(RunError, match=r"data\.samples \(50 there, 40 here\)"):
        opened(run.path, dataset=fewer, resume=Resume.ALWAYS)
    with pytest.raises(RunError, match=r"training\.learning_rate"):
        opened(run.path, settings=settings(learning_rate=0.2), resume=Resume.ALWAYS)
    with pytest.raises(RunError, match="already holds a run"):
        opened(run.path)
    with pytest.raises(RunError, match="no run in"):
        opened(tmp_path / "none", resume=Resume.ALWAYS)


@pytest.mark.parametrize("whole", [False, True])
def test_the_last_samples_of_an_epoch_are_learnt_unless_the_loader_drops_them(
    tmp_path: Path, whole: bool
) -> None:
    run = train(opened(tmp_path / "run", dataset=DataLoader(labelled(), 8, drop_last=whole)))
    (end,) = events(run, "end")
    assert end["samples"] == 3 * (48 if whole else SAMPLES)


def test_one_sample_that_a_normalisation_cannot_take_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a batch of one sample: .* drop_last=True"):
        train(opened(tmp_path / "run", settings=settings(batch_size=7)))


class Triples(Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.zeros(2), torch.zeros(1), torch.zeros(3)  # no weight of a sample


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ({"dataset": Endless()}, UserError, "Endless is unknown; add a __len__"),
        ({"dataset": Stream(), "validation": 0.2}, UserError, "map-style data set only"),
        ({"validation": 0.001}, UserError, "takes 0 of 50 samples"),
        ({"dataset": Triples()}, UserError, "a list of Tensor, Tensor, Tensor"),
        ({"dataset": TensorDataset(torch.zeros(0, 6), torch.zeros(0))}, UserError, "is empty"),
        ({"module": nn.ReLU()}, UserError, "nothing can be trained"),
        ({"loss": "hinge"}, RecipeError, "unknown loss 'hinge'"),
        ({"settings": settings(device="toaster")}, RecipeError, "not a device"),
    ],
)
def test_what_cannot_be_trained_is_said(
    tmp_path: Path, words: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        train(opened(tmp_path / "run", **words))


class Doubled(DataLoader[Any]):
    """A loader whose batches may differ each time."""


def test_a_run_says_that_it_cannot_promise_an_exact_resume(tmp_path: Path) -> None:
    run = train(opened(tmp_path / "run", dataset=Doubled(labelled(), 8), settings=settings(epochs=1)))
    (start,) = events(run, "start")
    assert "an exact resume is not guaranteed: Doubled is a custom loader" in str(start["resume_note"])


class Torn(Dataset[tuple[Tensor, Tensor]]):
    """Samples of which the last cannot be read once the set is torn."""

    is_torn = True

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.is_torn and index == SAMPLES - 1:
            raise OSError("the last sample is torn")
        inputs, targets = labelled()[index]
        return inputs, targets


@pytest.mark.parametrize("loader", [False, True])
def test_a_sample_that_cannot_be_read_costs_nothing_of_what_was_learnt(tmp_path: Path, loader: bool) -> None:
    given: Any = DataLoader(Torn(), 8) if loader else Torn()
    whole = train(opened(tmp_path / "whole", dataset=DataLoader(labelled(), 8) if loader else labelled()))
    job = opened(tmp_path / "run", dataset=given)
    with pytest.raises(OSError, match="last sample is torn"):
        train(job)
    steps = len(events(job.run, "checkpoint"))
    assert steps == 1 and 0 < last(job.run.checkpoints).step < 7
    Torn.is_torn = False
    try:
        again = train(opened(tmp_path / "run", dataset=given, resume=Resume.ALWAYS))
    finally:
        Torn.is_torn = True
    assert bits(again) == bits(whole)


def test_a_run_that_patience_ended_goes_on_with_more_of_it(tmp_path: Path) -> None:
    """The result equals that of a run with the larger patience from its start."""

    def ended(run: Path, patience: int, resume: Resume = Resume.NEVER) -> RunDirectory:
        stopping = settings(epochs=40, learning_rate=3.0, patience=patience)
        return train(opened(run, validation=labelled(), settings=stopping, resume=resume))

    few = bits(ended(tmp_path / "run", 1))
    assert bits(ended(tmp_path / "run", 1, Resume.ALWAYS)) == few
    whole = bits(ended(tmp_path / "whole", 3))
    assert few != whole
    assert bits(ended(tmp_path / "run", 3, Resume.ALWAYS)) == whole


def test_a_extended_run_that_patience_ended_goes_on_with_more_of_it(tmp_path: Path) -> None:
    """The end of the extension does not depend on when its patience was given."""

    def ended(run: Path, epochs: int, patience: int, resume: Resume) -> RunDirectory:
        stopping = settings(epochs=epochs, learning_rate=3.0, patience=patience)
        return train(opened(run, validation=labelled(), settings=stopping, resume=resume))

    for place in ("run", "whole"):
        ended(tmp_path / place, 2, 1, Resume.NEVER)
    few = bits(ended(tmp_path / "run", 40, 1, Resume.ALWAYS))
    again = ended(tmp_path / "run", 40, 1, Resume.ALWAYS)
    assert bits(again) == few
    assert "a larger training.patience" in str(events(again, "already_complete")[-1]["reason"])
    whole = bits(ended(tmp_path / "whole", 40, 3, Resume.ALWAYS))
    assert few != whole
    assert bits(ended(tmp_path / "run", 40, 3, Resume.ALWAYS)) == whole
