"""Formats of runs: migration to the current format, refusal of newer ones, recognition of runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from tests.support.training.runs import finish, last, resumed, started, stop_after
from tests.support.training.small_recipes import greedy

from cotswold.errors import FormatError, MachineError, RunError
from cotswold.recipe import migration, toml
from cotswold.recipe.schema import GreedyTraining, Recipe, SupervisedTraining
from cotswold.run import EventLog, RunDirectory, read_events
from cotswold.training import Resume, load_stacks, open_job


class LaterTraining(GreedyTraining):
    """The section of a later version, with one more field and another name for momentum."""

    shine: int = 3
    """A new field."""
    inertia: float = 0.5
    """The new name of momentum."""
    momentum: float = 0.0
    """A field that is no longer used."""


class LaterRecipe(Recipe):
    """A recipe of that version."""

    training: LaterTraining


def test_a_new_field_with_a_default_leaves_runs_usable(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert not stop_after(started(greedy(images), run, stores), 5, monkeypatch)
    identity = RunDirectory.open(run).identity

    class Greedy(LaterTraining):
        momentum: float = 0.9

    class Later(Recipe):
        training: Annotated[Greedy | SupervisedTraining, Field(discriminator="strategy")]

    monkeypatch.setattr(toml, "Recipe", Later)
    load_stacks(RunDirectory.open(run))
    found = finish(resumed(run, stores))
    assert last(found.checkpoints).state["recipe"]["training"]["shine"] == 3  # type: ignore[index]  # JSON
    assert last(run / "checkpoints").identity == identity


def test_a_migration_step_renames_a_field_of_an_older_run(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    written = run.recipe.read_text()
    monkeypatch.setattr(toml, "Recipe", LaterRecipe)
    monkeypatch.setattr(migration, "FORMAT", 2)
    job = resumed(run.path, stores)
    assert job.recipe.training.inertia == 0.5  # type: ignore[union-attr]  # the default, without a step
    monkeypatch.setitem(migration.RECIPE_STEPS, 1, renamed)
    job = resumed(run.path, stores)
    assert job.recipe.training.inertia == 0.9  # type: ignore[union-attr]  # of a later version
    load_stacks(job.run)  # the recipe in the checkpoint is migrated as well
    assert run.recipe.read_text() == written


def renamed(values: dict[str, Any]) -> None:
    values["training"]["inertia"] = values["training"].pop("momentum")


def test_a_recipe_without_a_format_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(values: dict[str, Any]) -> None:
        values["name"] = f"migrated {values['name']}"

    monkeypatch.setattr(migration, "FORMAT", 3)
    monkeypatch.setitem(migration.RECIPE_STEPS, 2, step)
    given = {"format": 1, "name": "x"}
    assert migration.migrate(given, "here") == {"name": "migrated x"} and given["name"] == "x"
    assert migration.migrate({"name": "x"}, "here") == {"name": "x"}


def test_what_a_newer_version_wrote_is_refused_by_name(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    record = run.path / "run.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        FormatError, match=r"run\.json was written by a newer version of Cotswold: .* format 2"
    ):
        resumed(run.path, stores)
    record.write_text(record.read_text().replace('"format": 2', '"format": 1'))
    run.recipe.write_text(run.recipe.read_text().replace("format = 1", "format = 2"))
    with pytest.raises(FormatError, match=r"recipe\.toml was written by a newer version"):
        resumed(run.path, stores)
    with EventLog(run.events) as log:
        log.write("start", format=2)
    with pytest.raises(FormatError, match=r"events\.jsonl was written by a newer version"):
        list(read_events(run.events))


@pytest.mark.parametrize(
    ("format", "words"),
    [
        *(
            (each, "has format .*, which no version of Cotswold writes")
            for each in ('"two"', "0", "true", "2.0")
        ),
        ("99999999999999999999999999", "was written by a newer version"),
    ],
)
def test_a_format_that_is_none_is_refused(format: str, words: str) -> None:
    with pytest.raises(FormatError, match=f"here {words}"):
        toml.parse(f'format = {format}\nname = "x"', "here")


def test_a_checkpoint_of_another_run_of_the_same_recipe_is_refused(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    one, other = (finish(started(greedy(images), tmp_path / name, stores)) for name in ("one", "other"))
    assert one.identity != other.identity
    shutil.rmtree(one.checkpoints)
    shutil.copytree(other.checkpoints, one.checkpoints)
    with pytest.raises(RunError, match="is a checkpoint of another run"):
        load_stacks(one)
    with pytest.raises(RunError, match="is a checkpoint of another run"):
        finish(resumed(one.path, stores))


def test_a_copied_run_is_the_same_run(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    shutil.copytree(run.path, tmp_path / "copy")
    assert finish(resumed(tmp_path / "copy", stores)).identity == run.identity


def test_an_edited_recipe_is_found_out_field_by_field(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    run.recipe.write_text(run.recipe.read_text().replace("momentum = 0.9", "momentum = 0.8"))
    words = r"was written with another recipe, which differs in training\.momentum \(0\.9 there, 0\.8 here\)"
    with pytest.raises(RunError, match=words):
        load_stacks(run)
    with pytest.raises(RunError, match=words):
        finish(resumed(run.path, stores))


def test_a_run_whose_record_is_lost_or_damaged_says_so(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    record = run.path / "run.json"
    for text in (
        "",
        "[]",
        "{}",
        '{"id": 3, "overrides": {}}',
        '{"id": "../../x", "overrides": {}}',
        "{" * 9999,
    ):
        record.write_text(text)
        with pytest.raises(MachineError, match=r"run\.json, which identifies the run of the checkpoints, "):
            load_stacks(run)
    record.unlink()
    with pytest.raises(MachineError, match=r"run\.json, .*, is missing; copy it again"):
        load_stacks(run)


def test_a_run_that_was_killed_before_it_had_a_recipe_begins_with_the_id_that_it_got(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    run = started(greedy(images), tmp_path / "run", stores).run
    identity = run.identity
    run.recipe.unlink()
    (run.path / "environment.json").unlink()
    recipe = tmp_path / "run.toml"
    again = open_job(recipe, run.path, stores=stores, resume=Resume.IF_STARTED)
    assert not again.resumed and again.run.identity == identity
