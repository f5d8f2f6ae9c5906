"""A run is extended in separate phases, with the bits of an interruption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.training.runs import bits, events, finish, last, recipe_of, resumed, started, stop_after
from tests.support.training.small_recipes import supervised

from cotswold.analysis.run_history import History
from cotswold.errors import MachineError, RunError
from cotswold.recipe import parse
from cotswold.run import RunDirectory, read_events
from cotswold.training import Job, Resume, load_stacks, open_job, trained_layers
from cotswold.training.jobs.extend import apply_extension, epochs_of, read, record_totals

STRATEGIES = ["greedy", "joint", "supervised"]
STEPS = {"greedy": 28, "joint": 14, "supervised": 24}
"""Steps of the recipe: 2.4 epochs of 6 steps for each of two stacks, or all; 4 epochs for `supervised`."""
MORE = {"greedy": 2 * 36, "joint": 36, "supervised": 12}
"""Steps of 6 more epochs, 2 for `supervised`."""


def further(run: Path, stores: Path, *overrides: str) -> Job:
    return open_job(None, run, stores=stores, resume=Resume.ALWAYS, overrides=overrides)


def total(strategy: str) -> str:
    return "training.epochs=6" if strategy == "supervised" else "training.epochs=8.4"


@pytest.fixture(scope="module")
def short(images: Path, stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a finished run of every strategy, which tests copy."""
    folder = tmp_path_factory.mktemp("short")
    for strategy in STRATEGIES:
        finish(started(recipe_of(strategy, images), folder / strategy, stores))
    return folder


@pytest.fixture(scope="module")
def finished(short: Path, stores: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Return a run of every strategy, finished and then extended."""
    folder = tmp_path_factory.mktemp("extended")
    runs = {}
    for strategy in STRATEGIES:
        shutil.copytree(short / strategy, folder / strategy)
        runs[strategy] = finish(further(folder / strategy, stores, total(strategy)))
    return runs


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_finished_run_is_trained_for_the_epochs_that_are_missing(
    finished: dict[str, RunDirectory], strategy: str
) -> None:
    run = finished[strategy]
    assert last(run.checkpoints).step == STEPS[strategy] + MORE[strategy]
    (said,) = events(run, "extended")
    assert said["epochs"] == ([6.0] if strategy == "supervised" else [8.4] * (1 + (strategy == "greedy")))
    again = [event["phase"] for event in events(run, "phase_start") if "extension" in event]
    assert again == {"greedy": [0, 1], "joint": ["all"], "supervised": ["layers"]}[strategy]
    assert [event["status"] for event in events(run, "end")] == ["finished", "finished"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_learns_further_with_a_schedule_of_its_own(
    finished: dict[str, RunDirectory], strategy: str
) -> None:
    run = finished[strategy]
    steps = [event for event in events(run, "step") if event["phase"] in (0, "all", "layers")]
    assert steps[-1]["phase_step"] == steps[-1]["phase_steps"]
    validations = events(run, "validation")
    for stack in {event["phase"] for event in validations}:
        held_out = {
            int(str(e["phase_step"])): float(str(e["loss"])) for e in validations if e["phase"] == stack
        }
        own = STEPS[strategy] // (2 if strategy == "greedy" else 1)
        assert max(held_out) == own + MORE[strategy] // (2 if strategy == "greedy" else 1)
        if stack == 0 or strategy != "greedy":  # what the second stack reads has changed
            assert held_out[max(held_out)] < held_out[own]


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        ("greedy", 28),
        ("greedy", 29),
        ("greedy", 37),
        ("greedy", 41),
        ("joint", 14),
        ("joint", 18),
        ("supervised", 30),
    ],
)
def test_a_extended_run_that_is_stopped_goes_on_with_the_same_bits(
    finished: dict[str, RunDirectory],
    short: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    step: int,
) -> None:
    shutil.copytree(short / strategy, tmp_path / "run")
    job = further(tmp_path / "run", stores, total(strategy))
    if step > STEPS[strategy]:
        assert not stop_after(job, step, monkeypatch)
    else:
        record_totals(job.run, job.totals)  # killed before anything is trained
    run = finish(resumed(tmp_path / "run", stores))
    assert bits(run) == bits(finished[strategy])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_extended_before_it_is_finished_has_the_same_bits(
    finished: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    assert not stop_after(started(recipe_of(strategy, images), tmp_path / "run", stores), 9, monkeypatch)
    run = finish(further(tmp_path / "run", stores, total(strategy)))
    assert bits(run) == bits(finished[strategy])


def test_a_run_from_the_disk_is_extended_with_the_same_bits(
    finished: dict[str, RunDirectory], short: Path, stores: Path, tmp_path: Path
) -> None:
    shutil.copytree(short / "greedy", tmp_path / "run")
    run = finish(further(tmp_path / "run", stores, total("greedy"), "training.offload=disk"))
    assert bits(run) == bits(finished["greedy"])


def test_asking_again_for_the_same_epochs_trains_nothing_more(
    finished: dict[str, RunDirectory], stores: Path
) -> None:
    run = finished["joint"]
    before = bits(run)
    finish(further(run.path, stores, total("joint")))
    finish(resumed(run.path, stores))
    assert bits(run) == before
    assert read(run) == ((8.4,),)


def test_a_run_is_extended_again_and_one_stack_alone(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(recipe_of("greedy", images), tmp_path / "run", stores))
    finish(further(run.path, stores, "training.epochs=3.4"))
    finish(further(run.path, stores, "training.epochs=3.4", "network.stacks.1.epochs=4.4"))
    assert read(run) == ((3.4, 3.4), (3.4, 4.4))
    assert last(run.checkpoints).step == 28 + 12 + 6
    again = [
        (event["phase"], event["extension"]) for event in events(run, "phase_start") if "extension" in event
    ]
    assert again == [(0, 1), (1, 1), (1, 2)]
    assert load_stacks(run)[1] == 46


def test_fewer_epochs_than_a_run_has_are_refused(finished: dict[str, RunDirectory], stores: Path) -> None:
    run = finished["joint"]
    for epochs in (2, 3):
        with pytest.raises(
            RunError, match=rf"trained for 8.4 epochs, but {epochs} were requested; a run can only be"
        ):
            further(run.path, stores, f"training.epochs={epochs}")


def test_another_field_beside_epochs_is_still_refused(
    finished: dict[str, RunDirectory], stores: Path
) -> None:
    with pytest.raises(RunError, match=r"training.relative_rate \(2.0 there, 1.0 here\)"):
        further(finished["joint"].path, stores, "training.epochs=9", "training.relative_rate=1")


def test_a_run_that_early_stopping_ended_is_trained_further(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    text = supervised(images, more="patience = 1\nlearning_rate = 0.000000001")
    run = finish(started(text, tmp_path / "run", stores))
    ended = last(run.checkpoints).step
    finish(further(run.path, stores, "training.epochs=7"))
    assert last(run.checkpoints).step > ended
    assert trained_layers(run).step <= last(run.checkpoints).step


def test_the_curves_of_a_report_go_on(finished: dict[str, RunDirectory]) -> None:
    history = History.from_events(read_events(finished["greedy"].events))
    assert sorted(history.phases) == [0, 1]
    for phase in history.phases.values():
        steps = phase.validation["loss"].steps
        assert steps[0] == 0 and steps[-1] == 14 + 36 and 14 in steps


def test_a_note_that_is_damaged_is_named_with_what_to_do(
    finished: dict[str, RunDirectory], tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run", finished["joint"].recipe.read_text(), {})
    for content in (
        "[",
        "[]",
        '{"format": 2, "epochs": []}',
        '{"format": 1, "epochs": [["x"]]}',
        '{"format": 1}',
        '{"format": 1, "epochs": [[Infinity]]}',
        '{"format": 1, "epochs": [[5], [4]]}',
        '{"format": 1, "epochs": [[5], [6, 6]]}',
    ):
        (run.path / "extended.json").write_text(content)
        with pytest.raises(MachineError, match=r"extended.json .*; copy it again, or remove it"):
            read(run)
    (run.path / "extended.json").write_text('{"format": 1, "epochs": [[5, 5]]}')
    kept = parse(run.recipe.read_text())
    with pytest.raises(MachineError, match=r"extended.json is of a run with more or fewer stacks"):
        apply_extension(kept, kept, run)


def test_a_run_that_lost_its_note_goes_on_where_it_was_when_asked_for_the_same_epochs(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    run = finish(started(recipe_of("joint", images), tmp_path / "run", stores))
    finish(further(run.path, stores, "training.epochs=6"))
    before = last(run.checkpoints).step
    (run.path / "extended.json").unlink()
    finish(further(run.path, stores, "training.epochs=6"))
    assert last(run.checkpoints).step == before


def test_a_general_field_moves_the_stacks_that_have_no_epochs_of_their_own(
    finished: dict[str, RunDirectory],
) -> None:
    kept = parse(finished["greedy"].recipe.read_text(), overrides=["network.stacks.1.epochs=8"])
    run = finished["joint"]
    (run.path / "extended.json").unlink()
    wanted, totals = apply_extension(
        parse(finished["greedy"].recipe.read_text(), overrides=["network.stacks.1.epochs=9"]), kept, run
    )
    assert totals == ((2.4, 9.0),) and epochs_of(wanted) == epochs_of(kept) == (2.4, 8.0)
    assert json.loads(json.dumps(totals)) == [[2.4, 9.0]]
