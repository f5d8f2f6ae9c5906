"""The commands that inspect a run, and the command that makes data."""

from __future__ import annotations

import csv
import json
import shutil
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Desk
from tests.support.cli.command import Said, cotswold
from tests.support.training.small_recipes import draw

from cotswold import analysis
from cotswold.analysis import Evaluation, ObjectSelectivity, score_object
from cotswold.checkpoint.manifest import Manifest
from cotswold.data.datasets import demo as synthetic
from cotswold.errors import MemoryLimitError
from cotswold.run import RunDirectory


@pytest.fixture
def copy(desk: Desk, tmp_path: Path) -> Path:
    """Return a private run of stacks."""
    shutil.copytree(desk.stacks, tmp_path / "run")
    return tmp_path / "run"


def evaluate(run: Path, desk: Desk, *words: object) -> Said:
    tests = ("--positives", desk.images / "level", "--negatives", desk.images / "upright")
    usual = () if "--splits" in words else ("--splits", 2, "--stores", desk.stores)
    return cotswold("evaluate", run, *tests, *usual, *words)


def test_evaluate_measures_the_neurons_and_keeps_the_result(desk: Desk, copy: Path) -> None:
    said = evaluate(copy, desk, "--json", "--name", "level")
    assert said.status == 0, said.err
    printed = json.loads(said.out)
    assert printed.pop("schema") == "cotswold.evaluate/1"
    assert printed == json.loads(RunDirectory.open(copy).evaluation.read_text())
    assert "level" in said.out
    table = evaluate(copy, desk, "--layers", "1.pooled", "--name", "level")
    assert table.status == 0
    for word in ("level", "1.pooled", "guess", "random filters", "k-means", "this network"):
        assert word in table.out


def test_an_evaluation_that_was_stopped_goes_on_with_the_tests_that_are_missing(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = (copy / "recipe.toml").read_text().replace("evaluate = []\n", "")
    for name, positives, negatives in (("level", "level", "upright"), ("steep", "upright", "level")):
        sources = f'positives = "{desk.images / positives}"\nnegatives = "{desk.images / negatives}"'
        recipe += f'\n[[evaluate]]\nname = "{name}"\n{sources}\n'
    (copy / "recipe.toml").write_text(recipe)

    def stopped(name: str, *words: object, **options: object) -> ObjectSelectivity:
        if name == "steep":
            raise KeyboardInterrupt
        return score_object(name, *words, **options)  # type: ignore[arg-type]  # whatever the command gives

    words = ("evaluate", copy, "--stores", desk.stores, "--splits", 1)
    with monkeypatch.context() as patch:
        patch.setattr("cotswold.analysis.score_object", stopped, raising=False)
        assert cotswold(*words).status == 130
    kept = Evaluation.read(copy / "evaluation.json")
    assert kept is not None and [found.name for found in kept.objects] == ["level"]
    said = cotswold(*words)
    assert said.status == 0
    assert "level: reusing the result of the same earlier test" in said.err
    assert "steep: reusing" not in said.err
    whole = Evaluation.read(copy / "evaluation.json")
    assert whole is not None and [found.name for found in whole.objects] == ["level", "steep"]
    assert whole.objects[0] == kept.objects[0]
    assert "reusing the result" not in cotswold(*words, "--repeat").err
    assert "reusing the result" not in cotswold(*words, "--weights", "equal").err


def test_guessing_gives_what_the_weights_of_the_classes_say(desk: Desk, copy: Path, tmp_path: Path) -> None:
    draw(tmp_path / "few", 10, level=True, first=300)
    tests = (
        "--positives",
        tmp_path / "few",
        "--negatives",
        desk.images / "upright",
        "--stores",
        desk.stores,
    )

    def guess(*words: object) -> float:
        said = cotswold("evaluate", copy, *tests, "--splits", 1, "--layers", "1.output", "--json", *words)
        assert said.status == 0, said.err
        return float(json.loads(said.out)["objects"][0]["guess"])

    assert guess() == guess("--weights", "paper") == 0.647
    assert guess("--weights", "counts") == 0.75
    assert guess("--weights", "equal") == 0.5
    assert guess("--weights", "0.1") == 0.9
    for wrong in ("1.5", "nan", "many"):
        said = cotswold("evaluate", copy, *tests, "--weights", wrong)
        assert said.status == 2 and f"number between 0 and 1, got {wrong}" in said.error


def test_evaluate_of_a_control_run_adds_its_column(desk: Desk, copy: Path) -> None:
    said = evaluate(copy, desk, "--layers", "2.output", "--control", desk.stacks)
    assert said.status == 0
    cells = [line for line in said.out.splitlines() if line.startswith("│")]
    assert "\n".join(cells).count(" / ") == 4  # random filters, k-means, the control, this network


def test_evaluate_without_tests_says_how_to_name_them(desk: Desk) -> None:
    said = cotswold("evaluate", desk.stacks, "--stores", desk.stores)
    assert said.status == 2
    assert "names no tests; give positives and negatives" in said.error
    said = cotswold("evaluate", desk.stacks, "--positives", desk.images)
    assert said.status == 2
    assert "needs both positives and negatives" in said.error


def test_evaluate_of_a_layer_that_is_not_there_names_it(desk: Desk) -> None:
    for name in ("7.output", "2.feelings", "top"):
        said = evaluate(desk.stacks, desk, "--layers", name)
        assert said.status == 2
        assert name in said.error or name.split(".")[0] in said.error


def test_evaluate_of_a_supervised_run_gives_its_accuracy(desk: Desk) -> None:
    said = cotswold("evaluate", desk.layers, "--stores", desk.stores)
    assert said.status == 0
    assert said.out.startswith("validation: ") and "of 12 samples" in said.out
    confusion = said.out[said.out.index("confusion") :]
    for row in ("level", "upright"):
        assert len([line for line in confusion.splitlines() if row in line]) == 2  # its column and its row
    found = json.loads(cotswold("evaluate", desk.layers, "--stores", desk.stores, "--json").out)
    assert sum(map(sum, found["confusion"])) == 12


def test_evaluate_of_a_supervised_run_takes_no_tests_of_neurons(desk: Desk) -> None:
    said = evaluate(desk.layers, desk)
    assert said.status == 2
    assert "omit --positives and --negatives" in said.error
    said = cotswold("evaluate", desk.stacks, "--metrics", "top2", "--split", "train")
    assert said.status == 2
    assert "has no accuracy; omit --split and --metrics, and test its neurons with" in said.error


def test_evaluate_prints_the_metrics_that_it_is_asked_for(desk: Desk) -> None:
    words = ("evaluate", desk.layers, "--stores", desk.stores, "--metrics", "macro_f1", "--metrics", "auroc")
    said = cotswold(*words)
    assert said.status == 0
    found = json.loads(cotswold(*words, "--json").out)["metrics"]
    assert said.out.endswith(f"macro_f1: {found['macro_f1']:.5g}\nauroc: {found['auroc']:.5g}\n")
    said = cotswold(*words, "--metrics", "mae")
    assert said.status == 2 and "the metric mae cannot be measured: mae needs targets" in said.error


@pytest.mark.parametrize("splits", [0, -1])
def test_evaluate_with_no_splits_is_refused_before_anything_runs(
    desk: Desk, copy: Path, tmp_path: Path, splits: int
) -> None:
    said = evaluate(copy, desk, "--splits", splits, "--stores", tmp_path / "stores")
    assert said.status == 2
    assert f"splits must be at least 1, got {splits}" in said.error
    assert not (copy / "evaluation.json").exists() and not (tmp_path / "stores").exists()


def test_an_evaluation_that_cannot_be_read_blocks_neither_the_report_nor_a_new_one(
    desk: Desk, copy: Path
) -> None:
    (copy / "evaluation.json").write_text('{"step": 28, "objects": [{"guess": NaN')
    said = report(copy)
    assert said.status == 0
    assert "the page is without the evaluation" in said.error
    assert (copy / "report.html").is_file()
    said = evaluate(copy, desk, "--layers", "1.pooled", "--name", "level")
    assert said.status == 0
    assert "renamed to evaluation.json.damaged" in said.err
    assert (copy / "evaluation.json.damaged").is_file()
    assert "guessing is 0.647" in said.out
    assert json.loads((copy / "evaluation.json").read_text())["objects"][0]["name"] == "level"
    assert report(copy).err == ""


def report(run: Path) -> Said:
    return cotswold("report", run)


def test_report_writes_one_page_and_says_where(desk: Desk, copy: Path) -> None:
    said = report(copy)
    assert said.status == 0
    assert said.err == ""
    assert said.out.strip() == str(copy / "report.html")
    page = (copy / "report.html").read_text()
    assert "<html" in page and 'src="http' not in page and 'href="http' not in page
    assert "against upright" not in page
    assert evaluate(copy, desk, "--layers", "2.output", "--name", "level against upright").status == 0
    assert report(copy).status == 0  # in place of the one before
    assert "level against upright" in (copy / "report.html").read_text()


def test_report_of_a_supervised_run_shows_its_accuracy(desk: Desk) -> None:
    said = report(desk.layers)
    assert said.status == 0
    assert "accuracy" in (desk.layers / "report.html").read_text().lower()


def test_report_works_while_training_goes_on(desk: Desk, copy: Path) -> None:
    """Report on a run without a checkpoint, with an incomplete last line, locked by another process."""
    shutil.rmtree(copy / "checkpoints")
    events = (copy / "events.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "events.jsonl").write_bytes(b"".join(events[:6]) + events[6][:20])
    with RunDirectory.open(copy).lock():
        said = report(copy)
    assert said.status == 0
    assert "has no checkpoint yet" in said.error
    assert (copy / "report.html").is_file()


def test_a_report_of_damaged_checkpoints_shows_the_rest_and_names_them(desk: Desk, copy: Path) -> None:
    for piece in copy.glob("checkpoints/*/00000.safetensors"):
        piece.write_bytes(piece.read_bytes()[:-1])
    said = report(copy)
    assert said.status == 0
    assert "the report contains no filters" in said.error and "is damaged" in said.error
    page = (copy / "report.html").read_text()
    assert "Not shown" in page and "00000.safetensors is damaged" in page
    assert "validation objective" in page


def test_a_report_of_filters_that_memory_does_not_hold_is_written_without_them(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(*_: object) -> None:
        raise MemoryLimitError("looking at it needs 9 GiB")

    monkeypatch.setattr("cotswold.training.jobs.restore.require_memory", small)
    said = report(copy)
    assert said.status == 0
    assert "needs 9 GiB" in said.error and "validation objective" in (copy / "report.html").read_text()


def test_commands_that_look_compute_on_as_many_threads_as_they_are_told(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, seen = analysis.build_report, list[int]()

    def spy(*words: Any, **named: Any) -> Path:
        seen.append(torch.get_num_threads())
        return build(*words, **named)

    monkeypatch.setattr(analysis, "build_report", spy)
    before = torch.get_num_threads()
    assert cotswold("report", copy, "--threads", 2).status == 0
    assert seen == [2] and torch.get_num_threads() == before
    for words in (
        ("evaluate", copy),
        ("features", copy, "a", "b.npy"),
        ("predict", copy, "a"),
        ("report", copy),
    ):
        said = cotswold(*words, "--threads", 0)
        assert said.status == 2 and "threads=0 is not in" in said.error


def test_report_of_a_run_that_has_only_begun_still_writes_a_page(desk: Desk, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", (desk.stacks / "recipe.toml").read_text(), {})
    assert report(run.path).status == 0
    assert run.report.is_file()


def test_features_are_written_for_every_image(desk: Desk, tmp_path: Path) -> None:
    words = ("--labels", "folders")
    said = cotswold("features", desk.stacks, desk.images, tmp_path / "features.npz", *words)
    assert said.status == 0, said.err
    with np.load(tmp_path / "features.npz", allow_pickle=False) as found:
        assert len(found["features"]) == len(found["names"]) == len(found["labels"]) == 60
        assert np.isfinite(found["features"]).all()
    said = cotswold(
        "features",
        desk.stacks,
        desk.images,
        tmp_path / "pooled.npy",
        "--layer",
        "1.pooled",
    )
    assert said.status == 0
    assert np.load(tmp_path / "pooled.npy").shape == (60, 3, 12, 12)


def test_features_and_predictions_want_the_right_kind_of_run(desk: Desk, tmp_path: Path) -> None:
    out = tmp_path / "features.npz"
    said = cotswold("features", desk.layers, desk.images, out)
    assert said.status == 2
    assert "is a run of layers; use a run of stacks" in said.error
    said = cotswold("predict", desk.stacks, desk.images)
    assert said.status == 2
    assert "is a run of stacks; use a supervised run" in said.error
    assert said.out == ""
    said = cotswold("features", desk.stacks, desk.images, tmp_path / "features.mat")
    assert said.status == 2
    assert "features.mat" in said.error


def test_a_single_image_is_answered_as_in_its_folder(desk: Desk, tmp_path: Path) -> None:
    draw(tmp_path / "new", 3, level=True, first=900)
    whole = cotswold("predict", desk.layers, tmp_path / "new").out.splitlines()
    one = sorted((tmp_path / "new").iterdir())[1]
    said = cotswold("predict", desk.layers, one)
    assert said.status == 0, said.err
    assert said.out.splitlines() == [whole[0], whole[2]]
    assert cotswold("features", desk.stacks, one, tmp_path / "one.npy").status == 0
    assert np.load(tmp_path / "one.npy").shape[0] == 1


def test_predictions_name_a_class_for_every_image(desk: Desk, tmp_path: Path) -> None:
    draw(tmp_path / "new", 9, level=True, first=500)
    (tmp_path / "new" / "torn.png").write_bytes(b"no image")
    said = cotswold("predict", desk.layers, tmp_path / "new")
    assert said.status == 0
    assert "torn.png" in said.error
    rows = list(csv.DictReader(StringIO(said.out)))
    assert [row["image"] for row in rows] == [f"{number:03d}.png" for number in range(500, 509)]
    assert {row["class"] for row in rows} == {"level"}
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "torn.png").write_bytes(b"no image")
    said = cotswold("predict", desk.layers, tmp_path / "torn")
    assert said.status == 2 and said.out == ""
    words = ("--top", 5, "--json")
    lines = cotswold("predict", desk.layers, tmp_path / "new", *words).out.splitlines()
    answers = [json.loads(line) for line in lines]
    assert len(answers) == 18  # there are but two classes
    assert sum(answer["probability"] for answer in answers) == pytest.approx(9, abs=1e-4)
    said = cotswold("predict", desk.layers, tmp_path / "new", "--top", 0)
    assert said.status == 2


def test_info_estimates_times_and_says_whether_a_recipe_fits(desk: Desk) -> None:
    found = json.loads(cotswold("info", desk.stacks_recipe, "--json").out)
    assert [layer["stack"] for layer in found["layers"]] == [1, 2]
    assert all(layer["update_seconds"] > 0 for layer in found["layers"])
    assert found["fits"] is True
    printed = cotswold("info", desk.layers_recipe).out
    for word in ("convolution", "local", "linear", "parameters", "update time: "):
        assert word in printed


def test_info_needs_no_images_and_says_what_is_not_known_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTSWOLD_DATA", raising=False)
    said = cotswold("info", "cifar10")
    assert said.status == 0
    assert "not known: the number of classes, and with it the output layer" in said.out
    found = json.loads(cotswold("info", "cifar10", "--json").out)
    assert [layer["type"] for layer in found["layers"]][-2:] == ["linear", "relu"]
    assert found["parameters"] == sum(layer["parameters"] for layer in found["layers"]) == 833_408


def test_info_of_a_network_whose_images_are_there_counts_its_outputs(desk: Desk) -> None:
    found = json.loads(cotswold("info", desk.layers_recipe, "--json").out)
    assert found["layers"][-1]["output"] == "2" and "not_known" not in found


def test_info_answers_soon_whatever_one_number_is(desk: Desk) -> None:
    for override in ("data.size=60000", "training.batch_size=1000000"):
        begun = time.monotonic()
        said = cotswold("info", desk.stacks_recipe, "--set", override)
        assert said.status == 0, said.err
        assert time.monotonic() - begun < 60  # some seconds, on a machine that has other work as well
    said = cotswold("info", desk.stacks_recipe, "--set", "data.size=1000000000")
    assert said.status == 2
    assert said.error.endswith("data.size cannot be 1000000000; it takes at most 65,536")


def test_data_make_writes_the_demonstration_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    few = {"builtin:demo-faces": synthetic.BUILTIN["builtin:demo-faces"]}  # the others take a minute
    monkeypatch.setattr(synthetic, "BUILTIN", few)
    said = cotswold("data", "make", tmp_path / "demo")
    assert said.status == 0
    for line in said.out.splitlines():
        folder, _, count = line.partition(": ")
        assert len(list(Path(folder).rglob("*.*"))) == int(count.split()[0]) > 0
    said = cotswold("data", "make", tmp_path / "demo")
    assert said.status == 2
    assert str(tmp_path / "demo") in said.error


def test_info_says_where_images_are_missing(desk: Desk) -> None:
    said = cotswold("info", desk.stacks_recipe, "--no-time", "--set", "data.source=nowhere")
    assert said.status == 0 and "nowhere does not exist; training needs it" in said.out
    assert "does not exist" not in cotswold("info", desk.stacks_recipe, "--no-time").out


def test_evaluate_says_which_stacks_have_not_begun_to_learn(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(desk.stacks, run)
    newest = sorted((run / "checkpoints").iterdir())[-1]
    manifest = Manifest.read(newest)
    (newest / "manifest.json").unlink()
    state = {**manifest.state, "position": {"phase": 0, "step": 1, "total": 1}}
    replace(manifest, state=state).write(newest)
    words = "--positives", desk.images / "level", "--negatives", desk.images / "upright"
    said = cotswold("evaluate", run, *words, "--stores", desk.stores)
    assert "the last 1 of the 2 stacks are untrained" in said.err
