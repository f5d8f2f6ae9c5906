"""`cotswold.train(module, dataset)`: a module and a data set of the user."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.digits import both, halves, network, squared
from torch import Tensor
from torch.utils.data import DataLoader

import cotswold
from cotswold.api.modules.request import sections_of
from cotswold.api.servers.parameter_server import build_module
from cotswold.errors import MachineError, RecipeError, RunError, UserError
from cotswold.recipe.schema import (
    BatchTraining,
    Cluster,
    DownpourTraining,
    Mesh,
    SupervisedTraining,
    WorkerMesh,
)
from cotswold.recipe.strategies import StrategyObject

FACTORY = "tests.support.api.digits:both"
SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 0.1}


def unpicklable() -> torch.nn.Module:
    """Return a module that no other process can receive."""
    module = network()
    module.lock = threading.Lock()  # type: ignore[assignment]  # any attribute may be set
    return module


def accuracy(module: torch.nn.Module) -> float:
    images, labels = halves().tensors
    with torch.no_grad():
        return float((module(images).argmax(1) == labels).float().mean())


def test_a_module_is_trained_in_place_and_the_run_has_one_at_rest(tmp_path: Path) -> None:
    module = network()
    run = cotswold.train(module, halves(), directory=tmp_path / "run", loss="cross_entropy", **SETTINGS)
    assert run.status == "finished"
    assert isinstance(run.recipe.training, SupervisedTraining) and run.recipe.training.epochs == 4
    assert accuracy(module) == accuracy(run.network) == 1.0
    assert run.network is not module and not run.network.training
    assert "finished" in run._repr_html_()


def test_another_program_fills_its_own_module_from_the_run(tmp_path: Path) -> None:
    cotswold.train(network(), halves(), directory=tmp_path / "run", loss=squared, validation=0.25, **SETTINGS)
    run = cotswold.Run(tmp_path / "run")
    with pytest.raises(RunError, match=r"run\.load\(module\)"):
        run.network
    assert accuracy(run.load(network())) == 1.0


def test_a_run_with_an_optimiser_of_the_program_asks_for_it_again(tmp_path: Path) -> None:
    words: dict[str, Any] = {"directory": tmp_path / "run", "batch_size": 8}
    own = partial(torch.optim.AdamW, lr=0.01)
    run = cotswold.train(network(), halves(), loss="cross_entropy", epochs=1, optimizer=own, **words)
    assert 'optimizer = "custom"' in (tmp_path / "run/recipe.toml").read_text()
    with pytest.raises(UserError, match=r"which no file of a run contains; give it in Python \(the same"):
        cotswold.train(network(), halves(), resume=True, epochs=2, **words)
    assert len(run.events) == len(cotswold.Run(run.path).events)
    again = cotswold.train(network(), halves(), resume=True, epochs=2, optimizer=own, **words)
    assert again.status == "finished" and again.recipe.training.optimizer == "custom"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no file of a run contains"):
        cotswold.train(network(), halves(), loss="cross_entropy", optimizer="custom")


def test_a_strategy_object_gives_only_the_fields_that_the_program_set() -> None:
    words = cotswold.Supervised(epochs=1)
    assert words.given_fields() == {"training": {"epochs": 1}, "mesh": {}}
    assert sections_of(words, {"learning_rate": 0.1})[0].learning_rate == 0.1  # type: ignore[union-attr]
    assert sections_of(words, {"optimizer": "adamw"})[0].learning_rate == 0.001  # type: ignore[union-attr]


def test_a_resumed_run_keeps_its_fields_and_names_another_optimizer(tmp_path: Path) -> None:
    words: dict[str, Any] = {"directory": tmp_path / "run", "loss": "cross_entropy", "batch_size": 8}
    cotswold.train(network(), halves(), learning_rate=0.1, epochs=1, **words)
    with pytest.raises(RunError, match=r"training.optimizer \(sgd there, adamw here\)"):
        cotswold.train(network(), halves(), resume=True, optimizer="adamw", **words)
    object_of = cotswold.Supervised(epochs=2)
    run = cotswold.train(network(), halves(), resume=True, strategy=object_of, **words)
    assert run.status == "finished"


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


def test_a_modules_run_has_a_report_and_says_who_can_answer_for_it(tmp_path: Path) -> None:
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", loss=squared, **SETTINGS)
    page = run.report(progress=False).read_text()
    assert "A module of a Python program" in page and "The page is without" not in page
    for ask in (cotswold.evaluate, lambda each: cotswold.predict(each, "images/")):
        with pytest.raises(RunError, match=r"fill a module with run\.load\(module\)"):
            ask(run)
    with pytest.raises(
        RunError, match=r"resume it there: cotswold.train\(module, dataset, directory='.*run', resume"
    ):
        cotswold.train_recipe(directory=run, resume=True)
    with pytest.raises(UserError, match=r"is a folder of a run; its recipe is .*: --run .*run --resume"):
        cotswold.train_recipe(tmp_path / "run", resume=True)


@pytest.mark.parametrize("words", [{}, {"loss": "cross_entropy"}])
def test_a_modules_run_that_was_moved_goes_on_from_its_new_directory(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    cotswold.train(network(), halves(), directory=tmp_path / "old", loss="cross_entropy", **SETTINGS)
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(
        RunError, match=r"there is no run in .*old to resume; give the run's present directory"
    ):
        cotswold.train(network(), halves(), directory=tmp_path / "old", resume=True, **words)
    run = cotswold.train(network(), halves(), directory=tmp_path / "new", resume=True, epochs=5, **words)
    assert run.status == "finished"


class Doubled(DataLoader[Any]):
    """A loader whose batches may differ each time."""


def test_that_no_exact_resume_is_promised_is_said_wherever_people_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "an exact resume is not guaranteed: Doubled is a custom loader"
    for resume in (False, True):
        stop = cotswold.Stop()
        stop.signal = signal.SIGINT  # before the first step
        caplog.clear()
        run = cotswold.train(
            network(),
            Doubled(halves(), 8),
            directory=tmp_path / "run",
            loss="cross_entropy",
            resume=resume,
            stop=stop,
            epochs=5,
        )
        assert said in caplog.text and said in " ".join(cotswold.why(run).sentences)
    assert said[1:] in run.report(progress=False).read_text()


def test_an_interrupted_module_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    words: dict[str, Any] = {"loss": "cross_entropy", **SETTINGS}
    whole = cotswold.train(network(), halves(), directory=tmp_path / "whole", **words)
    with pytest.raises(KeyboardInterrupt):
        cotswold.train(network(), halves(), directory=tmp_path / "run", callbacks=[hear], **words)
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", resume=True, **words)
    pairs = zip(whole.network.parameters(), run.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_program_draws_on_as_if_nothing_had_been_trained(tmp_path: Path) -> None:
    module = network()
    torch.manual_seed(4)
    before, wanted = torch.get_rng_state(), torch.rand(3)
    torch.set_rng_state(before)
    cotswold.train(module, halves(), directory=tmp_path / "run", loss="cross_entropy", **SETTINGS)
    assert torch.initial_seed() == 4 and torch.rand(3).equal(wanted)


def stopped(place: Path, *given: Any, **words: Any) -> None:
    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        cotswold.train(
            given[0], given[1] if len(given) > 1 else None, directory=place, callbacks=[hear], **words
        )


def same(one: cotswold.Run, other: cotswold.Run) -> bool:
    pairs = zip(one.network.parameters(), other.network.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def steps(run: cotswold.Run) -> object:
    return [event["step"] for event in run.events if event["kind"] == "step"][-1]


def test_a_run_that_is_resumed_says_itself_what_is_not_given_again(tmp_path: Path) -> None:
    words: dict[str, Any] = {"loss": "cross_entropy", "validation": 0.25, **SETTINGS}
    whole = cotswold.train(network(), halves(), directory=tmp_path / "whole", **words)
    stopped(tmp_path / "run", network(), halves(), **words)
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", resume=True)
    assert same(run, whole) and steps(run) == steps(whole)
    stopped(tmp_path / "made", FACTORY, **words)
    assert same(cotswold.train(FACTORY, directory=tmp_path / "made", resume=True), whole)
    more = steps(cotswold.train(network(), halves(), directory=tmp_path / "run", resume=True, epochs=5))
    again = cotswold.train(network(), halves(), directory=tmp_path / "run", resume=True)
    assert steps(again) == more == 5 * 6
    with pytest.raises(RunError, match=r"5 epochs, but 3 were requested.* resume=True without epochs"):
        cotswold.train(network(), halves(), directory=tmp_path / "run", resume=True, epochs=3)


def test_what_a_run_cannot_keep_must_be_given_again(tmp_path: Path) -> None:
    words: dict[str, Any] = {"loss": squared, "validation": halves(), **SETTINGS}
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", **words)
    with pytest.raises(UserError, match=r"uses a custom loss.* pass the same again"):
        cotswold.train(network(), halves(), directory=run, resume=True)
    with pytest.raises(UserError, match="uses a separate validation data set; give it again"):
        cotswold.train(network(), halves(), directory=run, resume=True, loss=squared)
    with pytest.raises(UserError, match="give the module and its data set again"):
        cotswold.train(None, directory=run, resume=True, loss=squared)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(RunError, match=r"cotswold\.train\(module, dataset, directory='.*run', resume=True"):
        cotswold.train_recipe(directory=run, resume=True)


class Renamed(torch.nn.Sequential):
    """The same module, of a class with another name and module."""


def test_the_place_of_a_class_does_not_make_another_module(tmp_path: Path) -> None:
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", loss="cross_entropy", **SETTINGS)
    more = cotswold.train(Renamed(*network().children()), halves(), directory=run, resume=True, epochs=5)
    assert steps(more) == 5 * 8


def test_tensors_are_a_data_set_and_the_module_is_at_rest_afterwards(tmp_path: Path) -> None:
    module = network()
    run = cotswold.train(
        module, halves().tensors, directory=tmp_path / "run", loss="cross_entropy", **SETTINGS
    )
    assert accuracy(module) == 1.0 and not module.training
    assert not run.load(network().train()).training


def test_a_factory_makes_both(tmp_path: Path) -> None:
    run = cotswold.train(FACTORY, directory=tmp_path / "run", loss="cross_entropy", **SETTINGS)
    assert accuracy(run.network) == 1.0


def test_a_modules_run_has_a_page_of_what_its_files_say(tmp_path: Path) -> None:
    module, words = network(), {"loss": "cross_entropy", "validation": 0.25, **SETTINGS}
    cotswold.train(module, halves(), directory=tmp_path / "run", **words)
    page = cotswold.Run(tmp_path / "run").report().read_text()
    assert "A module of a Python program (Sequential), trained on 48 samples." in page
    sections = re.findall(r'<section id="([^"]*)"', page)
    assert sections == ["learning", "speed", "account", "configuration", "environment"]


def test_what_only_the_program_can_ask_of_its_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    cotswold.train(network(), halves(), directory=tmp_path / "run", loss="cross_entropy", **SETTINGS)
    run = cotswold.Run(tmp_path / "run")
    asks: list[Callable[[], object]] = [
        lambda: cotswold.evaluate(run),
        lambda: cotswold.selectivity(run),
        lambda: cotswold.predict(run, tmp_path),
        lambda: cotswold.features(run, tmp_path),
        lambda: run.filters(),
    ]
    for ask in asks:
        with pytest.raises(RunError, match=r"trained a user's module.*run\.load\(module\)"):
            ask()


@pytest.mark.soak
def test_a_factory_trains_over_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Mapping[str, object]] = []
    run = cotswold.train(
        FACTORY,
        directory=tmp_path / "run",
        loss="cross_entropy",
        grid="1x2",
        callbacks=[heard.append],
        **SETTINGS,
    )
    assert run.status == "finished" and heard[0]["grid"] == "1x2"
    assert accuracy(run.network) == 1.0
    alone = cotswold.train(*both(), directory=tmp_path / "alone", loss="cross_entropy", **SETTINGS)
    pairs = zip(alone.network.parameters(), run.network.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)
    with pytest.raises(UserError, match="already holds a run"):
        cotswold.train(FACTORY, directory=tmp_path / "alone", loss="cross_entropy", grid="1x2", **SETTINGS)
    capfd.readouterr()


@pytest.mark.soak
def test_a_factory_trains_replicas(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = cotswold.train(FACTORY, directory=tmp_path / "run", loss="cross_entropy", replicas=2, **SETTINGS)
    assert run.status == "finished" and run.events[0]["replicas"] == 2
    alone = cotswold.train(*both(), directory=tmp_path / "alone", loss="cross_entropy", **SETTINGS)
    pairs = zip(alone.network.parameters(), run.network.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)
    more = cotswold.train(FACTORY, directory=tmp_path / "run", resume=True, epochs=6)
    assert more.events[-1]["status"] == "finished" and run.recipe.mesh.replicas == 2
    capfd.readouterr()


@pytest.mark.soak
def test_an_error_of_a_factory_is_that_of_the_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MachineError, match=r"^ValueError: cannot find my file"):
        cotswold.train(
            "tests.support.api.digits:unfit", directory=tmp_path / "run", loss="squared_error", grid="1x2"
        )
    capfd.readouterr()


def test_a_run_that_never_took_a_step_gives_place_to_the_corrected_one(tmp_path: Path) -> None:
    def failing(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("a slip")

    with pytest.raises(ValueError, match="a slip"):
        cotswold.train(network(), halves(), directory=tmp_path / "run", loss=failing, **SETTINGS)
    run = cotswold.train(network(), halves(), directory=tmp_path / "run", loss=squared, **SETTINGS)
    assert run.status == "finished" and sum(event["kind"] == "start" for event in run.events) == 1
    with pytest.raises(RunError, match=r"already holds a run; resume it with resume=True, or .* directory$"):
        cotswold.train(network(), halves(), directory=run, loss=squared, **SETTINGS)


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


def test_a_strategy_object_has_the_fields_of_its_tables() -> None:
    kinds: dict[type[StrategyObject], set[str]] = {
        cotswold.Supervised: {*SupervisedTraining.model_fields, *Mesh.model_fields},
        cotswold.FullBatch: {*BatchTraining.model_fields, *Cluster.model_fields, *WorkerMesh.model_fields},
        cotswold.Downpour: {*DownpourTraining.model_fields, *Cluster.model_fields, *WorkerMesh.model_fields},
    }
    for kind, names in kinds.items():
        assert set(kind.model_fields) == names
        tables = {name: kind.table_of(name) for name in names}
        assert tables["epochs" if "epochs" in names else "method"] == "training" and tables["grid"] == "mesh"
        assert tables.get("workers", "cluster") == "cluster" and tables.get("replicas", "mesh") == "mesh"
    given = cotswold.Downpour(update_rule="adagrad", workers=3, grid="1x2").given_fields()
    assert given == {
        "training": {"update_rule": "adagrad"},
        "cluster": {"workers": 3},
        "mesh": {"grid": "1x2"},
    }


def test_the_settings_of_a_strategy_object_reach_the_run_and_need_not_be_repeated(tmp_path: Path) -> None:
    strategy = cotswold.Downpour(workers=2, epochs=1, update_rule="adagrad", learning_rate=0.05)
    run = cotswold.train(
        network(), halves(), loss="cross_entropy", directory=tmp_path / "run", strategy=strategy
    )
    assert isinstance(run.recipe.training, DownpourTraining)
    assert run.recipe.training.update_rule == "adagrad" and run.recipe.cluster.workers == 2
    again = cotswold.train(network(), halves(), directory=run, resume=True)
    assert again.recipe == run.recipe


@pytest.mark.slow
def test_a_module_object_is_trained_on_a_grid_and_filled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[Mapping[str, object]] = []
    module, alone, factor = network(), network(), 1.0
    words: dict[str, Any] = {"loss": lambda one, other: factor * squared(one, other), **SETTINGS}
    cotswold.train(alone, halves(), directory=tmp_path / "alone", **words)
    run = cotswold.train(
        module, halves(), directory=tmp_path / "run", grid="1x2", callbacks=[heard.append], **words
    )
    assert heard[0]["grid"] == "1x2" and run.status == "finished"
    assert all(
        torch.allclose(one, other, atol=1e-4)
        for one, other in zip(alone.parameters(), module.parameters(), strict=True)
    )
    assert not module.training and accuracy(module) == accuracy(run.network) == 1.0
    capfd.readouterr()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_a_mode_that_the_program_has_chosen_changes_nothing(mode: Any, tmp_path: Path) -> None:
    plain, chosen = network(), network()
    words: dict[str, Any] = {"loss": "cross_entropy", "validation": 0.2, **SETTINGS, "epochs": 1}
    cotswold.train(plain, halves(), directory=tmp_path / "plain", **words)
    data = halves()
    with mode():
        cotswold.train(chosen, data, directory=tmp_path / "chosen", **words)
    assert all(map(torch.equal, plain.state_dict().values(), chosen.state_dict().values()))
