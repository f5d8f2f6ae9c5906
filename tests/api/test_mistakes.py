"""Mistakes in calls of `cotswold.train`: the message names the value and the remedy, and no run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.digits import halves, network
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, StepLR

import cotswold
from cotswold.callbacks import EarlyStopping
from cotswold.errors import CotswoldError


class Frame:
    """A table with columns, as of pandas and polars."""

    columns = dtypes = ("a", "b")

    def __len__(self) -> int:
        return 2


def of_another(optimizer: object) -> LRScheduler:
    """Return a scheduler that changes nothing of the run."""
    return StepLR(SGD(network().parameters(), lr=0.1), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"optimizer": "adamW"}, "not 'adamW'; did you mean adamw"),
        ({"scheduler": "cosin"}, "not 'cosin'; did you mean cosine"),
        ({"scheduler": of_another}, "returned a StepLR of another optimiser"),
        ({"callbacks": [EarlyStopping]}, r"the callback EarlyStopping is a class; give an object: E"),
        ({"callbacks": EarlyStopping()}, r"callbacks must be a list, got .*; write callbacks=\[...\]"),
        ({"loss": torch.nn.CrossEntropyLoss}, r"a class; give an object: CrossEntropyLoss\(\)"),
        ({"stop": True}, r"stop must be a cotswold.Stop\(\), got True"),
        ({"restarts": "2", "replicas": 2}, "restarts must be an integer of at least 0, got '2'"),
        ({"restarts": -1}, "restarts must be an integer of at least 0, got -1"),
        ({"device": "gpu"}, 'training.device = "gpu" is not a device; use one such as "cpu"'),
        ({"dataset": Frame()}, "a Frame of columns is not a data set of tensors; give .inputs, targets."),
    ],
)
def test_a_mistake_is_named_with_its_remedy(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"loss": "cross_entropy", "dataset": halves(), "epochs": 1, **words}
    with pytest.raises(CotswoldError, match=message):
        cotswold.train(network(), directory=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists() or cotswold.Run(tmp_path / "run").checkpoints == []


def test_a_strategy_and_a_scheduler_name_wrong_arguments() -> None:
    wrong: Any = cotswold.Supervised
    with pytest.raises(CotswoldError, match=r"by name, such as Supervised\(seed=1\), not 3"):
        wrong(3)
    wrong = cotswold.PerEpoch
    with pytest.raises(CotswoldError, match=r"PerEpoch\('cosine'\) needs a function"):
        wrong("cosine")


def test_a_directory_that_is_no_path_is_named() -> None:
    wrong: Any = 3
    with pytest.raises(CotswoldError, match="directory must be a path, got 3"):
        cotswold.train(network(), halves(), loss="cross_entropy", directory=wrong)


def test_a_module_for_a_recipe_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CotswoldError, match=r"^\w+\(.* is no recipe \(a name, a file, an object\)") as caught:
        cotswold.train_recipe(network(), tmp_path / "run")  # type: ignore[arg-type]  # a mistake
    assert "\n" not in str(caught.value)


class Misspelt(cotswold.callbacks.Callback):
    def on_step_edn(self, context: cotswold.callbacks.CallbackContext) -> None:
        raise AssertionError("never called")


def test_a_method_that_is_named_like_a_hook_and_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CotswoldError, match=r"Misspelt.on_step_edn is no hook .*did you mean on_step_end\?"):
        cotswold.train(
            network(), halves(), loss="cross_entropy", directory=tmp_path / "run", callbacks=[Misspelt()]
        )
    assert not (tmp_path / "run").exists()


def test_callbacks_of_a_generator_are_called_and_none_are_none(tmp_path: Path) -> None:
    seen = []

    class Count(cotswold.callbacks.Callback):
        def on_step_end(self, context: cotswold.callbacks.CallbackContext) -> None:
            seen.append(context.step)

    for number, given in enumerate(((each for each in [Count()]), None)):
        cotswold.train(
            torch.nn.Linear(2, 1),
            (torch.randn(8, 2), torch.randn(8, 1)),
            loss="squared_error",
            directory=tmp_path / str(number),
            epochs=1,
            batch_size=4,
            callbacks=given,  # type: ignore[arg-type]  # a sequence is documented
            metrics=None if given is None else (),  # type: ignore[arg-type]  # as above
        )
    assert seen == [1, 2]
