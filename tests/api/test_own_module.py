"""`cotswold.train(module, dataset)`: a module and a data set of the user's own."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.api.digits import both, halves, network, squared

import cotswold
from cotswold.errors import RecipeError, RunError, UserError

FACTORY = "tests.api.digits:both"
SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 0.1}


def accuracy(module: torch.nn.Module) -> float:
    images, labels = halves().tensors
    with torch.no_grad():
        return float((module(images).argmax(1) == labels).float().mean())


def test_a_module_is_trained_in_place_and_the_run_has_one_at_rest(tmp_path: Path) -> None:
    module = network()
    run = cotswold.train(module, halves(), tmp_path / "run", loss="cross_entropy", **SETTINGS)
    assert run.status == "finished" and run.recipe.training.epochs == 4
    assert accuracy(module) == accuracy(run.network) == 1.0
    assert run.network is not module and not run.network.training
    assert "finished" in run._repr_html_()


def test_another_program_fills_its_own_module_from_the_run(tmp_path: Path) -> None:
    cotswold.train(network(), halves(), tmp_path / "run", loss=squared, validation=0.25, **SETTINGS)
    run = cotswold.Run(tmp_path / "run")
    with pytest.raises(RunError, match=r"run\.load\(module\)"):
        run.network
    assert accuracy(run.load(network())) == 1.0


def test_an_interrupted_module_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    words: dict[str, Any] = {"loss": "cross_entropy", **SETTINGS}
    whole = cotswold.train(network(), halves(), tmp_path / "whole", **words)
    with pytest.raises(KeyboardInterrupt):
        cotswold.train(network(), halves(), tmp_path / "run", on_event=hear, **words)
    run = cotswold.train(network(), halves(), tmp_path / "run", resume=True, **words)
    pairs = zip(whole.network.parameters(), run.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_factory_makes_both(tmp_path: Path) -> None:
    run = cotswold.train(FACTORY, tmp_path / "run", loss="cross_entropy", **SETTINGS)
    assert accuracy(run.network) == 1.0


def test_a_modules_run_has_a_page_of_what_its_files_say(tmp_path: Path) -> None:
    module, words = network(), {"loss": "cross_entropy", "validation": 0.25, **SETTINGS}
    cotswold.train(module, halves(), tmp_path / "run", **words)
    page = cotswold.Run(tmp_path / "run").report().read_text()
    assert "A module of a program (Sequential), trained on 48 samples." in page
    sections = re.findall(r'<section id="([^"]*)"', page)
    assert sections == ["learning", "speed", "account", "configuration", "environment"]


def test_what_only_the_program_can_ask_of_its_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    cotswold.train(network(), halves(), tmp_path / "run", loss="cross_entropy", **SETTINGS)
    run = cotswold.Run(tmp_path / "run")
    asks: list[Callable[[], object]] = [
        lambda: cotswold.evaluate(run),
        lambda: cotswold.predict(run, tmp_path),
        lambda: cotswold.features(run, tmp_path),
        lambda: run.filters(),
    ]
    for ask in asks:
        with pytest.raises(RunError, match=r"has trained a module of a program.*run\.load\(module\)"):
            ask()


@pytest.mark.slow
def test_a_factory_trains_over_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Mapping[str, object]] = []
    run = cotswold.train(
        FACTORY, tmp_path / "run", loss="cross_entropy", grid="1x2", on_event=heard.append, **SETTINGS
    )
    assert run.status == "finished" and heard[0]["grid"] == "1x2"
    assert accuracy(run.network) == 1.0
    alone = cotswold.train(*both(), tmp_path / "alone", loss="cross_entropy", **SETTINGS)
    pairs = zip(alone.network.parameters(), run.network.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)
    with pytest.raises(UserError, match="already holds a run"):
        cotswold.train(FACTORY, tmp_path / "alone", loss="cross_entropy", grid="1x2", **SETTINGS)
    capfd.readouterr()


@pytest.mark.parametrize(
    ("given", "words", "sentence"),
    [
        ((network(), halves()), {}, "a module needs a loss"),
        ((network(),), {"loss": squared}, "a module is trained on a data set"),
        ((network(), "runs/x"), {"loss": squared}, "a module is trained on a data set"),
        ((network(), halves()), {"loss": squared, "stores": "x"}, "stores and overrides belong to a recipe"),
        ((network(), halves()), {"loss": squared, "grid": "1x2"}, "cannot be sent to other processes"),
        ((FACTORY,), {"loss": squared, "grid": "1x2"}, "a loss for other processes is a name"),
        (("__main__:both",), {"loss": "squared", "grid": "1x2"}, "is in the program itself"),
        (("digits",), {"loss": squared}, "names no function that makes a module"),
        (("tests.api.digits:none",), {"loss": squared}, "tests.api.digits:none cannot be imported"),
        ((FACTORY, halves()), {"loss": squared}, "makes the data set as well"),
        (("tests.api.digits:network",), {"loss": squared}, r"must return \(module, dataset\)"),
        ((network(), halves()), {"loss": squared, "strategy": "greedy"}, "trains stacks|greedy"),
        (("demo", halves()), {}, "a recipe names its own data"),
        (("demo", "x"), {"epochs": 3}, "epochs: a recipe says that itself"),
        (("demo", "x", "y"), {}, "given twice"),
        ((torch.nn.ReLU,), {}, "is neither a recipe .* nor a module"),
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
        cotswold.train(network(), halves(), tmp_path / "run", loss=squared, learning_rat=0.1)
