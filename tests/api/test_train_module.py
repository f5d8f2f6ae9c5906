"""`cotswold.train(module, dataset)`: a module and a data set of the user."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.digits import both, halves, network, squared
from torch import Tensor
from torch.utils.data import DataLoader

import cotswold
from cotswold.errors import MachineError, RunError, UserError
from cotswold.recipe.schema import (
    SupervisedTraining,
)

FACTORY = "tests.support.api.digits:both"
SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 0.1}


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
