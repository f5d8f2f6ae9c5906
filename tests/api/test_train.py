"""`cotswold.train` in one process: arguments, results, interruption."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tests.api.conftest import Desk
from tests.support.training.runs import bits

import cotswold
from cotswold.api.request import override_list
from cotswold.errors import RecipeError, RunError, UserError
from cotswold.recipe.schema import GreedyTraining
from cotswold.ui.describe import describe

Event = Mapping[str, object]


def trained(desk: Desk, to: Path, **words: object) -> cotswold.Run:
    return cotswold.train_recipe(desk.stacks_recipe, to, stores=desk.stores, **words)  # type: ignore[arg-type]  # mixed values


def at_step(number: int, act: Callable[[], object]) -> Callable[[Event], None]:
    """Return a listener that acts at a step."""

    def hear(event: Event) -> None:
        if event["kind"] == "step" and event["step"] == number:
            act()

    return hear


def same_bits(one: cotswold.Run, other: cotswold.Run) -> bool:
    return bits(one.directory) == bits(other.directory)


def test_a_finished_run_is_returned_with_its_trained_network(desk: Desk, tmp_path: Path) -> None:
    heard: list[Event] = []
    run = trained(desk, tmp_path / "run", callbacks=[heard.append])
    assert run.status == "finished" and run.path == tmp_path / "run"
    assert [event["kind"] for event in heard] == [event["kind"] for event in run.events]
    assert not run.network.training
    assert same_bits(run, desk.stacks)


def test_overrides_are_a_mapping_or_words_and_a_none_takes_a_field_away(desk: Desk, tmp_path: Path) -> None:
    fields = {"training.epochs": 0.5, "objective.sparsity": 0.2, "training.threads": None}
    run = trained(desk, tmp_path / "one", overrides=fields)
    assert isinstance(run.recipe.training, GreedyTraining)
    assert (run.recipe.training.epochs, run.recipe.sparsity(0), run.recipe.training.threads) == (
        0.5,
        0.2,
        None,
    )
    run = trained(desk, tmp_path / "two", overrides=["training.epochs=0.5"])
    assert isinstance(run.recipe.training, GreedyTraining) and run.recipe.training.epochs == 0.5


def test_a_recipe_may_be_an_object_that_python_has_changed(desk: Desk, tmp_path: Path) -> None:
    recipe = cotswold.recipe.load(desk.stacks_recipe)
    changed = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 0.5})})
    run = cotswold.train_recipe(changed, tmp_path / "run", stores=desk.stores)
    assert run.recipe == changed


def test_a_run_without_a_directory_is_called_after_its_recipe(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = cotswold.train_recipe(desk.stacks_recipe, stores=desk.stores, overrides={"training.epochs": 0.5})
    assert run.path == tmp_path / "runs" / "small"


def test_errors_are_the_commands(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="already holds a run; resume it with --resume"):
        trained(desk, desk.stacks.path)
    with pytest.raises(RecipeError, match="no recipe file 'nothing'"):
        cotswold.train_recipe("nothing", tmp_path / "run")
    with pytest.raises(UserError, match="threads=0 is not in"):
        trained(desk, tmp_path / "run", threads=0)
    with pytest.raises(RunError, match="there is no run in"):
        cotswold.train_recipe(directory=tmp_path / "run", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_finishes_the_step_saves_and_raises_and_the_run_goes_on_with_the_same_bits(
    desk: Desk, tmp_path: Path
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    hear = at_step(5, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        trained(desk, tmp_path / "run", callbacks=[hear])
    assert signal.getsignal(signal.SIGINT) is handler
    run = cotswold.Run(tmp_path / "run")
    assert run.status == "interrupted" and run.checkpoints
    run = cotswold.train_recipe(directory=run, resume=True)
    assert run.status == "finished" and same_bits(run, desk.stacks)
    assert "resumed" in [event["kind"] for event in run.events]


def test_a_second_interrupt_leaves_at_once(desk: Desk, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)

    def hurried() -> None:
        signal.raise_signal(signal.SIGINT)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        threading.Event().wait(30)  # a step that takes long

    with pytest.raises(KeyboardInterrupt, match="left at once"):
        trained(desk, tmp_path / "run", callbacks=[at_step(5, hurried)])
    assert signal.getsignal(signal.SIGINT) is handler
    assert cotswold.Run(tmp_path / "run").status == "failed"


def test_if_started_begins_and_then_goes_on(desk: Desk, tmp_path: Path) -> None:
    stop = cotswold.Stop()
    hear = at_step(4, lambda: setattr(stop, "signal", signal.SIGTERM))
    run = trained(desk, tmp_path / "run", resume="if_started", stop=stop, callbacks=[hear])
    assert run.status == "interrupted"
    assert trained(desk, tmp_path / "run", resume="if_started").status == "finished"


def test_a_thread_that_is_not_the_main_one_trains_and_is_stopped_by_a_stop(
    desk: Desk, tmp_path: Path
) -> None:
    stop, found = cotswold.Stop(), list[cotswold.Run]()
    hear = at_step(4, lambda: setattr(stop, "signal", signal.SIGINT))
    thread = threading.Thread(
        target=lambda: found.append(trained(desk, tmp_path / "run", stop=stop, callbacks=[hear]))
    )
    thread.start()
    thread.join()
    assert found[0].status == "interrupted"


def test_ctrl_c_saves_and_raises_also_where_the_program_has_a_stop_of_its_own(
    desk: Desk, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        trained(
            desk,
            tmp_path / "run",
            stop=cotswold.Stop(),
            callbacks=[at_step(5, lambda: signal.raise_signal(signal.SIGINT))],
        )
    run = cotswold.Run(tmp_path / "run")
    assert run.status == "interrupted" and run.checkpoints[-1].name.endswith("5")


def test_a_callback_that_fails_is_reported_once_and_the_run_goes_on(desk: Desk, tmp_path: Path) -> None:
    calls: list[Event] = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise ZeroDivisionError("a slip")

    with pytest.warns(RuntimeWarning, match="on_event raised ZeroDivisionError: a slip") as warned:
        run = trained(desk, tmp_path / "run", callbacks=[broken])
    assert len(calls) == len(warned) == 1
    assert run.status == "finished"


def test_an_interrupt_in_a_callback_stops_the_run_as_ctrl_c_does(desk: Desk, tmp_path: Path) -> None:
    def impatient() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(desk, tmp_path / "run", callbacks=[at_step(5, impatient)])
    assert cotswold.Run(tmp_path / "run").status == "interrupted"


def test_the_environment_and_the_threads_of_the_process_are_given_back(desk: Desk, tmp_path: Path) -> None:
    before, count, random = dict(os.environ), torch.get_num_threads(), torch.get_rng_state()
    seen: list[int] = []
    trained(
        desk, tmp_path / "run", threads=count + 1, callbacks=[lambda _: seen.append(torch.get_num_threads())]
    )
    assert set(seen) == {count + 1}
    assert dict(os.environ) == before and torch.get_num_threads() == count
    assert torch.equal(torch.get_rng_state(), random)


def test_training_shows_progress_only_on_a_terminal_or_on_request(
    desk: Desk, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(desk, tmp_path / "quiet", overrides={"training.epochs": 0.5})
    assert capfd.readouterr() == ("", "")
    trained(desk, tmp_path / "loud", overrides={"training.epochs": 0.5}, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "stack 2: 9,600 weights" in err and "finished: " in err


def test_a_run_is_extended_by_more_epochs(desk: Desk, tmp_path: Path) -> None:
    shutil.copytree(desk.stacks.path, tmp_path / "run")
    run = cotswold.Run(tmp_path / "run")
    first = run.network
    again = cotswold.train_recipe(directory=run, resume=True, overrides={"training.epochs": 3})
    assert "extended" in [event["kind"] for event in again.events]
    assert run.network is not first, "a network that is older than the newest checkpoint was kept"


def test_the_terminal_says_why_an_optimisation_ended() -> None:
    ended = {"kind": "phase_end", "phase": "layers", "step": 16, "reason": "no better validation 10 times"}
    assert describe(ended) == "layers ended after 16 iterations: no better validation 10 times"
    assert describe({"kind": "phase_end", "phase": 0, "step": 16}) is None  # its epochs are over


def test_overrides_in_sections_are_those_of_their_fields() -> None:
    given = {"training": {"epochs": 3, "seed": None}, "network.stacks.0.pool": 2}
    assert override_list(given) == ["training.epochs=3", "training.seed=", "network.stacks.0.pool=2"]
