"""Arguments of `cotswold.train` and `train_recipe` that are refused, with a remedy."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.digits import halves, network, squared
from torch.utils.data import DataLoader

import cotswold
from cotswold.api.servers.parameter_server import build_module
from cotswold.errors import RecipeError, UserError

FACTORY = "tests.support.api.digits:both"


def unpicklable() -> torch.nn.Module:
    """Return a module that no other process can receive."""
    module = network()
    module.lock = threading.Lock()  # type: ignore[assignment]  # any attribute may be set
    return module


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"learning_rate": 0.1}, "learning_rate is of an optimizer by name, but optimizer is an object"),
        ({"strategy": cotswold.Supervised(optimizer="adam")}, "optimizer is of an optimizer by name"),
        ({"scheduler": "linear"}, "schedule belongs to an optimizer by name; with an optimizer object"),
        ({"strategy": "batch"}, "strategy batch takes no optimizer object"),
        ({"strategy": "downpour"}, "strategy downpour takes no optimizer object"),
        (
            {"strategy": "batch", "optimizer": None, "scheduler": torch.optim.lr_scheduler.LinearLR},
            "strategy batch takes no scheduler object",
        ),
    ],
)
def test_settings_that_an_optimiser_of_the_program_does_not_use_are_refused(
    tmp_path: Path, words: dict[str, Any], said: str
) -> None:
    given = {"optimizer": partial(torch.optim.AdamW, lr=0.01), **words}
    with pytest.raises(UserError, match=said):
        cotswold.train(network(), halves(), directory=tmp_path / "run", loss="cross_entropy", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("factory", ["tests.support.api.digits", "tests.support.api.digits:", ":network"])
def test_what_names_no_function_is_told_how_one_is_named(factory: str) -> None:
    with pytest.raises(UserError, match=r"names no function; use the form package\.module:function"):
        build_module(factory)


@pytest.mark.parametrize(
    ("given", "words", "sentence"),
    [
        ((network(), halves()), {}, "a module needs a loss"),
        ((network(),), {"loss": squared}, "a module needs a data set"),
        ((network(), "runs/x"), {"loss": squared}, "a module needs a data set"),
        (
            (unpicklable(), halves()),
            {"loss": squared, "grid": "1x2"},
            "the module cannot be sent to other pro",
        ),
        (("__main__:both",), {"loss": "squared_error", "grid": "1x2"}, "is in the main program"),
        (("digits",), {"loss": squared}, "does not name a function that makes a module"),
        (
            ("tests.support.api.digits:none",),
            {"loss": squared},
            "tests.support.api.digits:none cannot be imported",
        ),
        ((FACTORY, halves()), {"loss": squared}, "also makes the data set"),
        (("tests.support.api.digits:network",), {"loss": squared}, r"must return \(module, dataset\)"),
        ((network(), halves()), {"loss": squared, "strategy": "greedy"}, "strategy greedy needs a recipe"),
        (
            (network(), halves()),
            {"loss": squared, "strategy": 3},
            "a name, or one of Supervised, FullBatch, D",
        ),
        ((network(), halves()), {"loss": squared, "callbacks": [3]}, "3 is no callback"),
        ((network(), halves()), {"loss": squared, "callbacks": print}, r"write callbacks=\[...\]"),
        (
            (network(), halves()),
            {"loss": squared, "strategy": cotswold.Supervised(epochs=3), "epochs": 2},
            r"epochs is given twice, to train\(\) and to Supervised\(\)",
        ),
        (("demo", halves()), {}, r"for a recipe, call train_recipe\('demo'"),
        ((torch.nn.ReLU,), {}, r"ReLU is a class; give an instance: ReLU\("),
        ((torch.nn.ReLU, halves()), {"loss": squared}, "ReLU is a class"),
        ((network(), halves()), {"loss": 3}, "loss must be a name or a function .* got 3"),
        ((3, halves()), {"loss": squared}, "3 is not a torch.nn.Module"),
        ((network(), (torch.zeros(3), torch.zeros(2))), {"loss": squared}, "of equal length, got 3, 2"),
        ((network(), "x".join), {"loss": squared}, "is not a data set"),
        ((network(), halves()), {"resume": "yes"}, "resume must be True, False"),
        ((torch.nn.LazyLinear(2), halves()), {"loss": squared}, "weight, bias of LazyLinear have no shape"),
        (
            (network(), halves()),
            {"loss": squared, "strategy": cotswold.Supervised(patience=2)},
            "patience=2 stops .* give validation",
        ),
        (
            (network(), halves()),
            {"loss": squared, "validation": 1.5},
            "must be a fraction between 0 and 1, .* got 1.5",
        ),
        (
            (network(), DataLoader(halves(), 64)),
            {"loss": squared, "batch_size": 16},
            "batch_size=16 conflicts with the DataLoader, which makes its own batches of 64",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_remedy(
    given: tuple[object, ...],
    words: dict[str, Any],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        cotswold.train(*given, **words)  # type: ignore[arg-type]  # some are of the wrong kind
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_the_strategy_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="learning_rat"):
        cotswold.train(
            network(),
            halves(),
            directory=tmp_path / "run",
            loss=squared,
            strategy=cotswold.Supervised(learning_rat=0.1),  # type: ignore[call-arg]  # on purpose
        )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("demo", halves()), "directory must be a path"),
        ((network(), "x"), "is no recipe .* for a module, call train"),
        ((3, "d"), "3 is no recipe"),
        (("demo", "x", {"resume": "yes"}), "resume must be True, False"),
        (
            ("demo", "x", {"overrides": "training.epochs=3"}),
            r'is a str; give a list, \["training.epochs=3"\]',
        ),
    ],
)
def test_what_is_no_recipe_is_refused_with_a_remedy(
    given: tuple[Any, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        cotswold.train_recipe(*given[:2], **(given[2] if len(given) > 2 else {}))
    assert list(tmp_path.iterdir()) == []
