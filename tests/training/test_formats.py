"""Runs of other versions, which no later one may need anything else to go on with.

`format_1.tar.xz` holds two that version 0.1 left half-way, before a run had an id.

They were trained for 22 of 32 steps (`stacks`, greedy) and for 14 of 24 (`layers`, supervised) on 28
pictures of 8 x 8 pixels; `store` is what they learnt from. `recipes` are resolved recipes of that version,
called after the hash by which its checkpoints knew their run. `format_2.tar.xz` holds two of the version that
came next, in the words before `recipe.renamed_fields`, on the same store.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from tests.support.cli.command import cotswold
from tests.support.training.runs import events, finish, last, losses, resumed, started, stop_after
from tests.support.training.small_recipes import draw_labelled, greedy

from cotswold.errors import FormatError, MachineError, RunError
from cotswold.recipe import first_identity, migration, reader
from cotswold.recipe.schema import GreedyTraining, Recipe, SupervisedTraining
from cotswold.run import EventLog, RunDirectory, read_events
from cotswold.training import Resume, load_stacks, open_job, trained_layers

FIRST = Path(__file__).parent / "format_1.tar.xz"
SECOND = Path(__file__).parent / "format_2.tar.xz"
LAST_LOSSES = {"stacks": 13.367601, "layers": 0.099351}
"""On held-out pictures, as version 0.1 found them at the end."""
LAST_LOSSES_2 = {"stacks": 12.872869, "layers": 0.252347}
"""As the version of format 2 found them."""


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with both runs of format 1."""
    folder = tmp_path / "first"
    with tarfile.open(FIRST) as archive:
        archive.extractall(folder, filter="data")
    monkeypatch.setenv("FIRST_RUN", str(folder))
    return folder


@pytest.fixture
def second(first: Path, tmp_path: Path) -> Path:
    """A folder with both runs of format 2."""
    folder = tmp_path / "second"
    with tarfile.open(SECOND) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("kind", ["stacks", "layers"])
def test_a_run_of_the_first_format_goes_on_to_the_loss_that_it_would_have_had(first: Path, kind: str) -> None:
    before = json.loads(max((first / kind / "checkpoints").glob("*/manifest.json")).read_text())
    run = finish(resumed(first / kind, first / "stores"))
    assert losses(run)[-1] == pytest.approx(LAST_LOSSES[kind], rel=1e-3)
    assert last(run.checkpoints).identity == run.identity == before["identity"]
    assert events(run, "resumed")[0]["step"] == before["step"]
    again = finish(resumed(run.path, first / "stores"))  # from a checkpoint of today in a run of then
    assert events(again, "resumed")[-1]["step"] == last(run.checkpoints).step


@pytest.mark.parametrize("kind", ["stacks", "layers"])
def test_a_run_of_the_second_format_goes_on_to_the_loss_that_it_would_have_had(
    first: Path, second: Path, kind: str
) -> None:
    before = json.loads((second / kind / "run.json").read_text())
    run = finish(resumed(second / kind, first / "stores"))
    assert losses(run)[-1] == pytest.approx(LAST_LOSSES_2[kind], rel=1e-3)
    assert last(run.checkpoints).identity == run.identity == before["id"]
    assert "batch = 6" in run.recipe.read_text()  # it stays as it was written


def test_a_run_of_the_second_format_says_its_older_words_and_is_evaluated_and_reported(
    first: Path, second: Path, tmp_path: Path
) -> None:
    draw_labelled(tmp_path / "more", 12, first=100)
    faces = ("--positives", tmp_path / "more" / "level", "--negatives", tmp_path / "more" / "upright")
    for words in (
        ("evaluate", second / "stacks", *faces, "--name", "level"),
        ("report", second / "stacks"),
        ("predict", second / "layers", tmp_path / "more" / "level"),
        ("verify", second / "layers"),
    ):
        said = cotswold(*words)
        assert said.status == 0, (words, said.err)
    said = cotswold("train", "--run", second / "layers", "--resume")
    assert said.status == 0
    assert "training.rate is training.learning_rate now" in said.err


def test_a_run_of_the_first_format_is_evaluated_looked_at_and_reported(first: Path, tmp_path: Path) -> None:
    draw_labelled(tmp_path / "more", 12, first=100)
    faces = ("--positives", tmp_path / "more" / "level", "--negatives", tmp_path / "more" / "upright")
    for words in (
        ("evaluate", first / "stacks", *faces, "--name", "level"),
        ("report", first / "stacks"),
        ("features", first / "stacks", tmp_path / "more" / "level", "--out", tmp_path / "features.npy"),
        ("predict", first / "layers", tmp_path / "more" / "level"),
        ("report", first / "layers"),
    ):
        said = cotswold(*words)
        assert said.status == 0, (words, said.err)
    assert "level" in (first / "stacks" / "report.html").read_text("utf-8")


def test_checkpoints_of_the_first_format_are_known_by_the_hash_that_it_used(first: Path) -> None:
    recipes = sorted((first / "recipes").iterdir())
    assert len(recipes) == 2
    for path in recipes:
        assert first_identity(tomllib.loads(path.read_text())) == path.stem


def test_an_edited_recipe_of_the_first_format_is_found_out(first: Path) -> None:
    recipe = first / "stacks" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("momentum = 0.9", "momentum = 0.8"))
    with pytest.raises(RunError, match="checkpoint of another run or of another recipe"):
        load_stacks(RunDirectory.open(first / "stacks"))


class LaterTraining(GreedyTraining):
    """That of a version to come, which knows one more field and has another name for momentum."""

    shine: int = 3
    """How much it shines."""
    inertia: float = 0.5
    """What was called momentum."""
    momentum: float = 0.0
    """Nobody gives it any more."""


class LaterRecipe(Recipe):
    """A recipe of that version."""

    training: LaterTraining


def test_a_new_field_with_a_default_leaves_runs_of_every_format_usable(
    first: Path, pictures: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert not stop_after(started(greedy(pictures), run, stores), 5, monkeypatch)
    identity = RunDirectory.open(run).identity

    class Greedy(LaterTraining):
        momentum: float = 0.9

    class Later(Recipe):
        training: Annotated[Greedy | SupervisedTraining, Field(discriminator="strategy")]

    monkeypatch.setattr(reader, "Recipe", Later)
    for path in (run, first / "stacks"):
        load_stacks(RunDirectory.open(path))
        found = finish(resumed(path, stores))
        assert last(found.checkpoints).state["recipe"]["training"]["shine"] == 3  # type: ignore[index]  # JSON
    trained_layers(RunDirectory.open(first / "layers"))
    assert last(run / "checkpoints").identity == identity


def test_a_new_name_is_read_from_old_runs_by_migration(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(values: dict[str, Any]) -> None:
        values["training"]["inertia"] = values["training"].pop("momentum")

    monkeypatch.setattr(reader, "Recipe", LaterRecipe)
    monkeypatch.setitem(migration.RECIPE_STEPS, 1, renamed)
    job = resumed(first / "stacks", first / "stores")
    assert job.recipe.training.inertia == 0.9  # type: ignore[union-attr]  # of a later version
    load_stacks(job.run)


def test_what_a_newer_version_wrote_is_refused_by_name(pictures: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(pictures), tmp_path / "run", stores))
    record = run.path / "run.json"
    record.write_text(record.read_text().replace('"format": 3', '"format": 4'))
    with pytest.raises(FormatError, match=r"run\.json is of format 4, and this Cotswold reads 1 to 3"):
        resumed(run.path, stores)
    record.write_text(record.read_text().replace('"format": 4', '"format": 3'))
    run.recipe.write_text(run.recipe.read_text().replace("format = 3", "format = 4"))
    with pytest.raises(FormatError, match=r"recipe\.toml is of format 4"):
        resumed(run.path, stores)
    with EventLog(run.events) as log:
        log.write("start", format=4)
    with pytest.raises(FormatError, match=r"events\.jsonl is of format 4"):
        list(read_events(run.events))


@pytest.mark.parametrize("format", ['"two"', "0", "true", "2.0", "99999999999999999999999999"])
def test_a_format_that_is_none_is_refused(tmp_path: Path, format: str) -> None:
    with pytest.raises(FormatError, match="here is of format"):
        reader.parse(f'format = {format}\nname = "x"', "here")


def test_a_checkpoint_of_another_run_of_the_same_recipe_is_refused(
    pictures: Path, stores: Path, tmp_path: Path
) -> None:
    one, other = (finish(started(greedy(pictures), tmp_path / name, stores)) for name in ("one", "other"))
    assert one.identity != other.identity
    shutil.rmtree(one.checkpoints)
    shutil.copytree(other.checkpoints, one.checkpoints)
    with pytest.raises(RunError, match="is a checkpoint of another run"):
        load_stacks(one)
    with pytest.raises(RunError, match="is a checkpoint of another run"):
        finish(resumed(one.path, stores))


def test_a_copied_run_is_the_same_run(pictures: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(pictures), tmp_path / "run", stores))
    shutil.copytree(run.path, tmp_path / "copy")
    assert finish(resumed(tmp_path / "copy", stores)).identity == run.identity


def test_an_edited_recipe_is_found_out_field_by_field(pictures: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(pictures), tmp_path / "run", stores))
    run.recipe.write_text(run.recipe.read_text().replace("momentum = 0.9", "momentum = 0.8"))
    words = r"was written under another recipe, which differs in training\.momentum \(0\.9 there, 0\.8 here\)"
    with pytest.raises(RunError, match=words):
        load_stacks(run)
    with pytest.raises(RunError, match=words):
        finish(resumed(run.path, stores))


def test_a_run_whose_record_is_lost_or_damaged_says_so(pictures: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(pictures), tmp_path / "run", stores))
    record = run.path / "run.json"
    for text in (
        "",
        "[]",
        "{}",
        '{"id": 3, "remembered": {}}',
        '{"id": "../../x", "remembered": {}}',
        "{" * 9999,
    ):
        record.write_text(text)
        with pytest.raises(MachineError, match=r"run\.json, which says whose the checkpoints are, "):
            load_stacks(run)
    record.unlink()
    with pytest.raises(MachineError, match=r"run\.json, .*, is missing; copy it again"):
        load_stacks(run)


def test_a_run_that_was_killed_before_it_had_a_recipe_begins_with_the_id_that_it_got(
    pictures: Path, stores: Path, tmp_path: Path
) -> None:
    run = started(greedy(pictures), tmp_path / "run", stores).run
    identity = run.identity
    run.recipe.unlink()
    (run.path / "environment.json").unlink()
    recipe = tmp_path / "run.toml"
    again = open_job(recipe, run.path, stores=stores, resume=Resume.IF_STARTED)
    assert not again.resumed and again.run.identity == identity
